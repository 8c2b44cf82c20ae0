"""A run's checkpoints on disk: one folder a generation, the last few of them.

    round-00000100/
        tensors.safetensors   weights, what the optimizer remembers, cached and sent tensors
        state.json            everything else
        checksums             of both, as `sha256sum -c checksums` reads them

A generation is written aside, synced file by file, and only then gets its name: whatever happens on
the way, those before it are untouched. One of which a single byte is not as it was written is not
held. This module does not know what the tensors mean.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from celu.checkpoint.disk import Disk, Part, RealDisk
from celu.checkpoint.identity import RunIdentity, read_identity, write_identity
from celu.checkpoint.tensors import parts_of, tensors_of
from celu.checkpoint.writer import Background, Writer
from celu.errors import CheckpointError

FOLDER = "checkpoints"
_TENSORS, _STATE, _SUMS = "tensors.safetensors", "state.json", "checksums"
_NAME = re.compile(r"round-(\d{8}|[1-9]\d{8,14})")
_PARTIAL = re.compile(r"\.round-\d{8,15}\.partial")


@dataclass(frozen=True)
class Snapshot:
    """What a party has after some rounds. Nobody may write to its tensors any more."""

    round: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]  # as JSON has it


class Checkpoints:
    """The checkpoints of one party's run, in its run folder.

    `damaged` says why a generation that is there is not held.
    """

    def __init__(
        self, folder: Path, disk: Disk | None = None, writer: Writer | None = None
    ) -> None:
        self._run_folder = folder
        self._folder = folder / FOLDER
        self._disk = disk or RealDisk()
        self._writer = writer or Background()
        self._identity: RunIdentity | None = None
        self._found: tuple[RunIdentity | None, list[int]] | None = None
        self.damaged: dict[int, str] = {}

    def find(self) -> tuple[RunIdentity | None, list[int]]:
        """Whose checkpoints these are, by `run.json` or else the newest; and `held`.

        Looked at once: large ones take longer to read than a peer would wait.
        """
        if self._found is None:
            self._found = self._find()
        return self._found

    def _find(self) -> tuple[RunIdentity | None, list[int]]:
        identity = read_identity(self._run_folder, self._disk)
        held = self._sound(identity)
        if identity is None and held[-1] > 0:
            with suppress(OSError, ValueError):
                identity = self._read(held[-1])[1]
        return identity, held

    def begin(self, identity: RunIdentity, round_: int) -> None:
        """Go on as this run from this round; what is newer or damaged is dropped.

        What is newer was not held by all parties: it is about to be made anew. Raises
        CheckpointError.
        """
        write_identity(self._run_folder, self._disk, identity)
        self._identity, self._found = identity, None
        try:
            self._disk.make_folder(self._folder)
            self._disk.sync_folder(self._run_folder)
            for name in self._disk.names(self._folder):
                if _PARTIAL.fullmatch(name):
                    self._disk.remove(self._folder / name)
            for other in self._rounds():
                if other > round_ or other in self.damaged:
                    self._drop(other)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise self._cannot("be put in order", error) from error

    def held(self) -> list[int]:
        """The rounds that can be gone on from, ascending; 0, the beginning, always can."""
        return self._sound(read_identity(self._run_folder, self._disk))

    def _sound(self, known: RunIdentity | None) -> list[int]:
        self.damaged = {}
        sound = [0]
        for round_ in self._rounds():
            try:
                _, identity, _ = self._read(round_)
                if known is not None and identity.run != known.run:
                    raise ValueError("it is of another run")
                sound.append(round_)
            except (OSError, ValueError) as error:
                self.damaged[round_] = str(error)
        return sound

    def load(self, round_: int) -> Snapshot:
        """A generation; raises CheckpointError where it is not what was written."""
        try:
            tensors, _, state = self._read(round_)
            return Snapshot(round_, tensors_of(tensors), state)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self._path(round_)}: expected the checkpoint as it was written, got: {error}; "
                "start again to go on from the one before"
            ) from error

    def keep(self, snapshot: Snapshot, generations: int) -> None:
        """Have a snapshot written, and all but the newest so many generations dropped.

        Raises CheckpointError, perhaps that of the last one: those before it are intact.
        """
        self._writer.do(lambda: self._save(snapshot, generations))

    def settle(self) -> None:
        """Wait until all that was to be kept is on disk; raises CheckpointError."""
        self._writer.settle()

    def _save(self, snapshot: Snapshot, generations: int) -> None:
        assert self._identity is not None  # `begin` came first
        state = {
            "round": snapshot.round,
            "identity": self._identity.to_json(),
            "state": snapshot.state,
        }
        final = self._path(snapshot.round)
        partial = self._partial(snapshot.round)
        disk = self._disk
        try:
            disk.remove(partial)
            disk.make_folder(partial)
            sums = {
                _TENSORS: self._write(partial / _TENSORS, parts_of(snapshot.tensors)),
                _STATE: self._write(partial / _STATE, [json.dumps(state).encode()]),
            }
            disk.write(partial / _SUMS, [_sums(sums).encode()])
            disk.sync_folder(partial)
            disk.rename(partial, final)
            disk.sync_folder(self._folder)
            for old in self._rounds()[:-generations]:
                self._drop(old)
        except OSError as error:
            with suppress(OSError):  # it may hold the very room that is lacking
                disk.remove(partial)
            raise self._cannot(f"hold round {snapshot.round}", error) from error

    def _write(self, path: Path, parts: Iterable[Part]) -> str:
        """Write and sync a file; its checksum."""
        digest = hashlib.sha256()

        def noted() -> Iterator[Part]:
            for part in parts:
                digest.update(part)
                yield part

        self._disk.write(path, noted())
        return digest.hexdigest()

    def _read(self, round_: int) -> tuple[bytes, RunIdentity, dict[str, Any]]:
        """What a generation holds; raises OSError or ValueError unless it is as written."""
        folder = self._path(round_)
        lines = self._disk.read(folder / _SUMS).decode("ascii")
        files = {name: self._disk.read(folder / name) for name in (_TENSORS, _STATE)}
        if lines != _sums({n: hashlib.sha256(data).hexdigest() for n, data in files.items()}):
            raise ValueError(f"{_SUMS} does not match the files beside it")
        try:
            content = json.loads(files[_STATE])
        except RecursionError:
            raise ValueError(f"{_STATE}: expected JSON of a few levels, got very many") from None
        if not isinstance(content, dict) or content.keys() != {"round", "identity", "state"}:
            raise ValueError(f"{_STATE}: expected a round, an identity and a state")
        if content["round"] != round_ or not isinstance(content["state"], dict):
            raise ValueError(f"{_STATE}: expected the state of round {round_}")
        return files[_TENSORS], RunIdentity.from_json(content["identity"]), content["state"]

    def _rounds(self) -> list[int]:
        """The rounds of all generations that are there, ascending."""
        found = [_NAME.fullmatch(name) for name in self._disk.names(self._folder)]
        rounds = sorted(int(match[1]) for match in found if match)
        return [round_ for round_ in rounds if round_ > 0]

    def _drop(self, round_: int) -> None:
        """By way of another name: one that is half removed must not look like a damaged one."""
        partial = self._partial(round_)
        self._disk.remove(partial)
        self._disk.rename(self._path(round_), partial)
        self._disk.remove(partial)

    def _path(self, round_: int) -> Path:
        return self._folder / f"round-{round_:08d}"

    def _partial(self, round_: int) -> Path:
        return self._folder / f".round-{round_:08d}.partial"

    def _cannot(self, what: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self._folder}: cannot {what} ({error.strerror or error}); make room, or look at the "
            "disk, and start again to go on from the checkpoint before"
        )


def _sums(digests: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())
