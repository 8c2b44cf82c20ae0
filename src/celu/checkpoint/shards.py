"""Tensors of which each rank of a party has some rows, in a checkpoint: one file a rank.

Row i is the rank's that i % size names. A rank writes its file beside the checkpoint and hands it
over by renaming it to a name with its digest; the first rank waits for all, moves them into the
checkpoint, and only then does the checkpoint count. Any number of ranks can read the rows. All
ranks must see one folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from celu.checkpoint.disk import BytesLike, Disk, write_hashed
from celu.errors import CheckpointError

HANDED_OVER = re.compile(
    r"\.shard-([0-9a-f]{32})-(\d{1,15})-(\d{1,6})(?:-([0-9a-f]{64})|\.partial)"
)
_TIMEOUT_S, _POLL_S = 600.0, 0.02
_MAX_SIZE = 1 << 20  # ranks


@dataclass(frozen=True)
class Share:
    """What one rank has of a party's tensors: all of most, and its rows of sharded ones.

    `rows` maps those to the rows of the whole: a name, or how names start, with a dot at the end.
    """

    rank: int
    size: int
    rows: Mapping[str, int]

    def rows_of(self, name: str) -> int | None:
        """The rows of the whole tensor with this name; None if every rank has all of it."""
        return self.rows.get(name, self.rows.get(name.rpartition(".")[0] + "."))

    def split(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors that every rank has all of, and the sharded ones."""
        # An optimizer may have numbers, such as its steps, besides tensors.
        own = {n: t for n, t in tensors.items() if t.dim() and self.rows_of(n) is not None}
        return {n: t for n, t in tensors.items() if n not in own}, own


WHOLE = Share(0, 1, {})


@dataclass(frozen=True)
class StoredShards:
    """The shards of a checkpoint: how many, and the rows of each tensor when it is whole."""

    size: int
    rows: Mapping[str, int]

    @staticmethod
    def of(share: Share, own: Mapping[str, Tensor]) -> StoredShards | None:
        """Those of a rank's share; None if it has all of every tensor."""
        rows = {name: number for name in own if (number := share.rows_of(name)) is not None}
        return StoredShards(share.size, rows) if rows else None

    @property
    def files(self) -> list[str]:
        """The names of the files, by rank."""
        return [f"shard-{rank}-of-{self.size}.safetensors" for rank in range(self.size)]

    def to_json(self) -> dict[str, Any]:
        """As stored."""
        return {"size": self.size, "rows": dict(self.rows)}

    @staticmethod
    def from_json(value: Any) -> StoredShards:
        """The inverse of `to_json`; raises ValueError."""
        if not isinstance(value, dict) or value.keys() != {"size", "rows"}:
            raise ValueError("shards: expected a size and rows")
        size, rows = value["size"], value["rows"]
        if type(size) is not int or not 0 < size <= _MAX_SIZE or not isinstance(rows, dict):
            raise ValueError("shards: expected a number of ranks, and rows by name")
        if any(type(number) is not int or number < 0 for number in rows.values()):
            raise ValueError("shards: expected numbers of rows")
        return StoredShards(size, rows)


def read_rows(files: list[Path], name: str, rows: int, rank: int, size: int) -> Tensor:
    """A rank's rows of a tensor that is stored in these files, in the shards of as many ranks.

    Raises OSError, or ValueError if they have another number of rows.
    """
    own: Tensor | None = None
    for shard, path in enumerate(files):
        # Rows shard + len(files) * j of the whole, of which every `size`-th is wanted.
        first = next((j for j in range(size) if (shard + len(files) * j) % size == rank), None)
        part = _read(path, name)
        if len(part) != len(range(shard, rows, len(files))):
            raise ValueError(f"{path.name}: {name}: expected a part of {rows} rows, got others")
        if own is None:
            own = torch.empty((len(range(rank, rows, size)), *part.shape[1:]), dtype=part.dtype)
        if first is None or first >= len(part):
            continue
        step = next(k for k in range(1, size + 1) if len(files) * k % size == 0)
        into = own[(shard + len(files) * first) // size :: len(files) * step // size]
        into.copy_(part[first::step])
    assert own is not None
    return own


def _read(path: Path, name: str) -> Tensor:
    """A tensor that is mapped from its file: only what is copied is read."""
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor
    except SafetensorError as error:
        raise ValueError(f"{path.name}: expected {name}, got: {error}") from error


class Handover:
    """Passes the files of all ranks to the first one, through a folder that all of them see.

    `attempt` names this start of the ranks: files of an earlier one are not taken. `is_broken` says
    that a rank is gone, so that nobody waits for its file.
    """

    def __init__(
        self, folder: Path, disk: Disk, attempt: str, is_broken: Callable[[], bool]
    ) -> None:
        self._folder = folder
        self._disk = disk
        self.attempt = attempt
        self._is_broken = is_broken

    def give(self, round_: int, rank: int, parts: Iterable[BytesLike]) -> None:
        """Write the file of a rank; raises CheckpointError."""
        name = f".shard-{self.attempt}-{round_}-{rank}"
        partial = self._folder / f"{name}.partial"
        try:
            digest = write_hashed(self._disk, partial, parts)
            self._disk.rename(partial, self._folder / f"{name}-{digest}")
        except OSError as error:
            raise CheckpointError(
                f"{self._folder}: rank {rank} cannot write its rows of the checkpoint of round "
                f"{round_} ({error.strerror or error}); free some space or check the disk, and "
                "start again to resume from the previous checkpoint"
            ) from error

    def take(self, round_: int, rank: int, path: Path) -> str:
        """Move a rank's file to a path once it is there, and return its digest.

        Raises OSError, and CheckpointError if it does not appear.
        """
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            is_last = self._is_broken() or time.monotonic() > deadline
            for name in self._disk.names(self._folder):
                found = HANDED_OVER.fullmatch(name)
                if (
                    found
                    and found[4]
                    and found.groups()[:3]
                    == (
                        self.attempt,
                        str(round_),
                        str(rank),
                    )
                ):
                    self._disk.rename(self._folder / name, path)
                    return found[4]
            if is_last:
                raise CheckpointError(
                    f"{self._folder}: rank {rank} did not write its rows of the checkpoint of "
                    f"round {round_}; start again to resume from the previous checkpoint"
                )
            time.sleep(_POLL_S)
