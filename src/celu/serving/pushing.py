"""`mode = "pushed"`: a host sends the Z of all aligned rows in advance, and the guest stores it.

The guest then answers without asking, also while the host is down; the host does not see which rows
are scored. In return the guest holds the Z of every aligned row, also of those it never scores.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from celu.codecs.codec import Codec
from celu.data.folder import sync
from celu.errors import AlignmentError, CeluError, ConfigError, ProtocolError
from celu.serving.host_link import GuestParts, HostLink, OnEnd, Result, RowKeys, ZRows
from celu.serving.model import Model
from celu.serving.row_index import NO_ROW
from celu.serving.rows import ChunkPlan, RowSource, Section
from celu.transport.ask import only
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.stream import StreamLink
from celu.transport.wire import is_finite, not_finite

_HEADER_BYTES = 64  # a digest of what the numbers belong to, and zeros


def push(link: StreamLink, model: Model, slot: int, rows: RowSource, codec: Codec) -> None:
    """Send Z of all aligned rows to the guest, as far ahead as the link accepts."""
    for chunk in rows.chunks(0, rows.plan.num_aligned):
        z_BD = model.activations(chunk.batch).float().cpu().contiguous()
        if not is_finite(z_BD):
            raise not_finite(f"Z of chunk {chunk.number}")
        message = Message(
            Kind.SCORING_ACTIVATION,
            chunk.number,
            slot,
            tensor=codec.encode(z_BD, None).reshape(-1, 1),
            row_digest=chunk.batch.row_digest,
        )
        run_blocking(link.send(message))


def chunk_ranges(counts: Mapping[Any, int], chunk_rows: int) -> list[tuple[int, int]]:
    """The aligned rows of each chunk, from one number to before another."""
    sections = tuple(Section(part, True, rows) for part, rows in counts.items())
    plan = ChunkPlan(sections, chunk_rows)
    before = {section.part: sum(s.rows for s in sections[:n]) for n, section in enumerate(sections)}
    return [
        (before[piece.section.part] + piece.start, before[piece.section.part] + piece.stop)
        for number in range(plan.num_chunks)
        for piece in plan.pieces(number, number + 1)
    ]


class PushedFile:
    """The Z of all aligned rows in a mapped file, which appears when it is complete."""

    def __init__(self, path: Path, identity: str, rows: int, width: int) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._header = hashlib.sha256(f"{identity} {rows} {width}".encode()).digest()
        self._shape = rows, width
        self.z_ND: np.ndarray[Any, np.dtype[np.float32]] | None = None

    def open(self) -> bool:
        """Map the file if it is there and complete."""
        with suppress(OSError):
            size = _HEADER_BYTES + 4 * self._shape[0] * self._shape[1]
            with self._path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
                is_complete = os.fstat(file.fileno()).st_size == max(size, _HEADER_BYTES)
            if header.startswith(self._header) and is_complete:
                self.z_ND = np.asarray(self._map(self._path, "r"))  # a plain array: faster to index
                return True
        return False

    def create(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A new file to write to; raises ConfigError."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._partial.open("wb") as file:
                file.write(self._header.ljust(_HEADER_BYTES, b"\0"))
                file.truncate(_HEADER_BYTES + 4 * self._shape[0] * self._shape[1])
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be written: {error.strerror}") from error
        return self._map(self._partial, "r+")

    def publish(self) -> None:
        """Let the new file appear."""
        sync(self._partial)
        self._partial.rename(self._path)
        sync(self._path.parent)
        self.open()

    def _map(self, path: Path, mode: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        if not self._shape[0]:
            return np.zeros(self._shape, np.float32)
        return np.memmap(path, np.float32, mode, offset=_HEADER_BYTES, shape=self._shape)


class HostPush(HostLink):
    """The Z of one host, as it was pushed for each model."""

    def __init__(
        self,
        name: str,
        parts: GuestParts,
        widths: Callable[[], Mapping[str, int]],
        folder: Path,
    ) -> None:
        super().__init__(name, parts, widths)
        self._folder = folder
        self._files: dict[str, PushedFile] = {}
        self._ranges = chunk_ranges(parts.rows.counts, parts.serving.chunk_rows)
        self._incoming: dict[str, Iterator[int]] = {}
        self._targets: dict[str, Any] = {}

    def _begin(self, link: StreamLink, on_end: OnEnd) -> None:
        self._incoming, self._targets = {}, {}  # a push that was interrupted starts over
        max_bytes = self._max_bytes(self._parts.serving.chunk_rows)
        link.allow({Kind.SCORING_ACTIVATION: TensorSpec(max_bytes, 1, torch.uint8)})
        handlers = {
            Kind.ANNOUNCE: self._on_announce,
            Kind.SCORING_ACTIVATION: self._on_chunk,
        }
        link.handle(only(handlers, link.peer), on_end)

    def has_z(self, model: str) -> bool:
        """See `HostLink`."""
        return self._file(model) is not None

    def pushed_z(self, model: str) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        """Z of all aligned rows, None if it is not complete."""
        file = self._file(model)
        return None if file is None else file.z_ND

    def _complete(self) -> list[str]:
        return [model for model in self._widths() if self.has_z(model)]

    def want(self, names: Any) -> None:
        """See `HostLink`. The files of other models are removed."""
        for model in [model for model in self._files if model not in names]:
            del self._files[model]
        with suppress(OSError):
            wanted = {self._path(name).name for name in names}
            for path in self._folder.glob(f"{self.name}-*.z"):
                if path.name not in wanted:
                    path.unlink()
        super().want(names)

    def start(self, model: str, keys: RowKeys, deadline_at: float) -> Result:
        """See `HostLink`. There is nothing to wait for."""
        file = self._file(model)
        numbers = keys.numbers
        if file is None or file.z_ND is None:
            found = ZRows([False] * len(numbers), None)
        elif len(numbers) == 1 and numbers[0] != NO_ROW:
            found = ZRows([True], file.z_ND[numbers[0] : numbers[0] + 1])
        else:
            has_z = [number != NO_ROW for number in numbers]
            z_ND = file.z_ND[list(compress(numbers, has_z))] if any(has_z) else None
            found = ZRows(has_z, z_ND)
        return Result(lambda: found)

    def _path(self, model: str) -> Path:
        return self._folder / f"{self.name}-{model}.z"

    def _file(self, model: str, *, is_new: bool = False) -> PushedFile | None:
        """The complete file of a model, or with `is_new` one to write."""
        if not is_new and (known := self._files.get(model)) is not None:
            return known
        width = self._widths().get(model)
        if width is None:
            return None
        rows = self._parts.rows
        identity = f"{model} {self.name} {rows.contract()} {self._parts.serving.codec}"
        file = PushedFile(self._path(model), identity, rows.num_aligned, width)
        if is_new:
            return file
        if not file.open():
            return None
        self._files[model] = file
        return file

    def _on_chunk(self, message: Message) -> None:
        """Write a chunk of a push; raises AlignmentError, ProtocolError or NonFiniteError."""
        slots = (self.models.slots if self.models is not None else None) or {}
        model = next((name for name, slot in slots.items() if slot == message.part), None)
        width = self._widths().get(model or "")
        if model is None or width is None or model not in self._wanted:
            raise ProtocolError(f"{message.described}: expected a model that was asked for")
        if model not in self._incoming:
            file = self._file(model, is_new=True)
            assert file is not None  # its width is known
            self._incoming[model] = iter(range(len(self._ranges)))
            self._targets[model] = file, file.create()
        expected = next(self._incoming[model], None)
        if message.round != expected:
            raise ProtocolError(f"{message.described}: expected chunk {expected}")
        start, stop = self._ranges[message.round]
        if message.row_digest != self._parts.rows.digest(start, stop):
            raise AlignmentError(
                f"{message.described}: {self.name} used rows other than ours; run "
                '"celu align" again at all parties'
            )
        assert message.tensor is not None  # checked with the header
        z_BD = self._codec.decode(message.tensor.reshape(-1), stop - start, width)
        if not is_finite(z_BD):
            raise not_finite(f"Z of {self.name}")
        file, target = self._targets[model]
        target[start:stop] = z_BD.numpy()
        if message.round == len(self._ranges) - 1:
            target.flush()
            del self._incoming[model], self._targets[model]
            try:
                file.publish()
            except OSError as error:
                raise CeluError(f"{self._path(model)}: cannot be written: {error}") from error
            self._files[model] = file
            self._parts.say(f"{self.name} pushed its Z for model {model}")
            self._parts.on_change()
