"""A run's checkpoints on disk: one folder per checkpoint; the newest few are retained.

    round-00000100/
        tensors.safetensors   weights, optimizer state, cached tensors, tensors in flight
        state.json            everything else
        shard-0-of-2.safetensors ...   each rank's rows of sharded tables, if there are any
        checksums             of them, in the format of `sha256sum -c checksums`

A checkpoint is written to a temporary folder, synced file by file and renamed last: a crash at any
point leaves earlier checkpoints intact. A checkpoint that fails its checksum is reported and not
used. Nothing is deleted when a run resumes: a checkpoint newer than the round it resumes from is
renamed to `superseded-...`, a damaged one, or one that a person gave up, to `discarded-...`. They
are removed when a new checkpoint of their round or of a later one is written. This module does not
interpret the tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from celu.checkpoint.content import (
    STATE,
    SUMS,
    TENSORS,
    Content,
    read_content,
    read_share,
    sums,
)
from celu.checkpoint.disk import Disk, RealDisk, write_hashed
from celu.checkpoint.identity import RunIdentity, read_identity, write_identity
from celu.checkpoint.shards import HANDED_OVER, WHOLE, Handover, Share, StoredShards
from celu.checkpoint.tensors import serialize_tensors
from celu.checkpoint.writer import BackgroundWriter, Writer
from celu.errors import CheckpointError

FOLDER = "checkpoints"
_CURRENT, _SUPERSEDED, _DISCARDED = "round", "superseded", "discarded"
_NAME = re.compile(r"(round|superseded|discarded)-(\d{8}|[1-9]\d{8,14})")
_PARTIAL = re.compile(r"\.round-\d{8,15}\.partial")


@dataclass(frozen=True)
class Snapshot:
    """A party's state after some rounds. Its tensors must not be modified any more."""

    round: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]  # JSON values
    share: Share = WHOLE  # of sharded tensors: the rows that this rank has


class Checkpoints:
    """The checkpoints of one party's run, in its run folder.

    `damaged` maps the round of each checkpoint that cannot be used to the reason, and `contracts`
    that of each other one to the contract under which it was written.
    """

    def __init__(
        self, folder: Path | str, disk: Disk | None = None, writer: Writer | None = None
    ) -> None:
        self._run_folder = Path(folder)
        self._folder = self._run_folder / FOLDER
        self._disk = disk or RealDisk()
        self._writer = writer or BackgroundWriter()
        self._identity: RunIdentity | None = None
        self._scanned: tuple[RunIdentity | None, list[int]] | None = None
        self.damaged: dict[int, str] = {}
        self.contracts: dict[int, Mapping[str, Any]] = {}
        self.handover: Handover | None = None  # from the other ranks of a party

    def scan(self) -> tuple[RunIdentity | None, list[int]]:
        """The run, by `run.json` or else by the newest checkpoint, and `available_rounds`.

        The result is cached: reading large checkpoints takes longer than a peer would wait.
        """
        if self._scanned is None:
            identity = read_identity(self._run_folder, self._disk)
            rounds = self._verified_rounds(identity)
            if identity is None and rounds[-1] > 0:
                with suppress(OSError, ValueError):
                    identity = self._read(rounds[-1]).identity
                rounds = self._verified_rounds(identity)  # the others may be of another run
            self._scanned = identity, rounds
        return self._scanned

    def start(self, identity: RunIdentity, round_: int) -> None:
        """Start or resume this run from this round; set newer and damaged checkpoints aside.

        Some party lacks the newer rounds, so all parties repeat them. Raises CheckpointError.
        """
        write_identity(self._run_folder, self._disk, identity)
        self._identity, self._scanned = identity, None
        try:
            self._disk.make_folder(self._folder)
            self._disk.sync_folder(self._run_folder)
            for name in self._disk.names(self._folder):
                if _PARTIAL.fullmatch(name) or self._is_left_over(name):
                    self._disk.remove(self._folder / name)
            for other in self._rounds():
                if other in self.damaged:
                    self._set_aside(_CURRENT, other, _DISCARDED)
                elif other > round_:
                    self._set_aside(_CURRENT, other, _SUPERSEDED)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise self._error("set newer checkpoints aside", error) from error

    def hand_over(self, attempt: str, is_broken: Callable[[], bool]) -> None:
        """Share the writing of sharded tensors with the other ranks of a party; see `Handover`."""
        self.handover = Handover(self._folder, self._disk, attempt, is_broken)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._run_folder

    def is_of(self, run: str) -> bool:
        """Whether the run folder is that of the run with this id."""
        found = read_identity(self._run_folder, self._disk)
        return found is not None and found.run == run

    def restart_from(self, round_: int) -> None:
        """Give up all checkpoints newer than this one, because a person decided so.

        The next session cannot resume from them, and does not miss them. They stay on disk until
        training has passed them. Raises CheckpointError if there is no checkpoint of this round.
        """
        identity, rounds = self.scan()
        if round_ not in rounds:
            raise CheckpointError(
                f"{self._folder}: cannot restart from round {round_}; expected one of "
                f"{', '.join(map(str, rounds))}"
            )
        self._scanned = None
        if identity is not None:  # `run.json` may be lost, and then only they identify the run
            write_identity(self._run_folder, self._disk, identity)
        try:
            for state in (_CURRENT, _SUPERSEDED):
                for other in self._rounds(state):
                    if other > round_:
                        self._set_aside(state, other, _DISCARDED)
            if self._disk.names(self._folder):
                self._disk.sync_folder(self._folder)
        except OSError as error:
            raise self._error("set newer checkpoints aside", error) from error

    def superseded_rounds(self) -> list[int]:
        """The rounds that some session decided to repeat and that were not reached again."""
        return self._rounds(_SUPERSEDED)

    def available_rounds(self) -> list[int]:
        """The rounds a run can resume from, ascending; always includes 0, the start."""
        return self._verified_rounds(read_identity(self._run_folder, self._disk))

    def _verified_rounds(self, expected: RunIdentity | None) -> list[int]:
        self.damaged, self.contracts = {}, {}
        verified = [0]
        for round_ in self._rounds():
            try:
                identity = self._read(round_).identity
                if expected is not None and identity.run != expected.run:
                    raise ValueError("it belongs to another run")
                verified.append(round_)
                self.contracts[round_] = identity.contract
            except (OSError, ValueError) as error:
                self.damaged[round_] = str(error)
        return verified

    def load(self, round_: int, share: Share = WHOLE) -> Snapshot:
        """Read a checkpoint, with a rank's share of sharded tensors, whoever wrote it.

        Raises CheckpointError if it is damaged.
        """
        try:
            # Reading shards may take long, and `scan` has compared their digests.
            found = self._read(round_, with_shards=False)
            tensors = read_share(self._path(round_), found, share)
            return Snapshot(round_, tensors, found.state, share)
        except (OSError, ValueError) as error:
            raise self._damaged(round_, error) from error

    def save(self, snapshot: Snapshot, generations: int) -> None:
        """Write a snapshot, perhaps in the background, and retain the newest `generations`.

        Raises CheckpointError, perhaps that of the previous snapshot; earlier checkpoints are
        intact.
        """
        self._writer.submit(lambda: self._write_checkpoint(snapshot, generations))

    def give(self, snapshot: Snapshot) -> None:
        """Hand a snapshot's sharded tensors over to the first rank, which saves the others.

        Raises CheckpointError, perhaps that of the previous snapshot.
        """
        handover, share = self.handover, snapshot.share
        assert handover is not None
        _, own = share.split(snapshot.tensors)
        self._writer.submit(
            lambda: handover.give(snapshot.round, share.rank, serialize_tensors(own))
        )

    def flush(self) -> None:
        """Wait until every saved snapshot is on disk; raises CheckpointError."""
        self._writer.flush()

    def _write_checkpoint(self, snapshot: Snapshot, generations: int) -> None:
        assert self._identity is not None  # `start` comes first
        state = {
            "round": snapshot.round,
            "identity": self._identity.to_json(),
            "state": snapshot.state,
        }
        whole, own = snapshot.share.split(snapshot.tensors)
        shards = StoredShards.of(snapshot.share, own)
        if shards is not None:
            state["shards"] = shards.to_json()
        final = self._path(snapshot.round)
        partial = self._partial(snapshot.round)
        disk = self._disk
        try:
            disk.remove(partial)
            disk.make_folder(partial)
            parts = {TENSORS: serialize_tensors(whole), STATE: [json.dumps(state).encode()]}
            digests = {
                name: write_hashed(disk, partial / name, part) for name, part in parts.items()
            }
            for rank, name in enumerate([] if shards is None else shards.files):
                if rank == snapshot.share.rank:
                    digests[name] = write_hashed(disk, partial / name, serialize_tensors(own))
                else:
                    assert self.handover is not None
                    digests[name] = self.handover.take(snapshot.round, rank, partial / name)
            disk.write(partial / SUMS, [sums(digests).encode()])
            disk.sync_folder(partial)
            disk.rename(partial, final)
            disk.sync_folder(self._folder)
            for old in self._rounds()[:-generations]:
                self._drop(_CURRENT, old)
            for aside in (_SUPERSEDED, _DISCARDED):
                for old in self._rounds(aside):
                    if old <= snapshot.round:
                        self._drop(aside, old)
        except OSError as error:
            with suppress(OSError):  # free its space: the disk may be full
                disk.remove(partial)
            raise self._error(f"write the checkpoint of round {snapshot.round}", error) from error

    def _read(self, round_: int, *, with_shards: bool = True) -> Content:
        return read_content(self._disk, self._path(round_), round_, with_shards=with_shards)

    def _is_left_over(self, name: str) -> bool:
        """Whether a file was handed over in an earlier attempt."""
        found = HANDED_OVER.fullmatch(name)
        return found is not None and (self.handover is None or found[1] != self.handover.attempt)

    def _damaged(self, round_: int, error: OSError | ValueError) -> CheckpointError:
        return CheckpointError(
            f"{self._path(round_)}: the checkpoint is damaged: {error}; "
            "start again to resume from the previous one"
        )

    def _rounds(self, state: str = _CURRENT) -> list[int]:
        """The rounds of all checkpoint folders in this state, ascending."""
        found = [_NAME.fullmatch(name) for name in self._disk.names(self._folder)]
        rounds = sorted(int(match[2]) for match in found if match and match[1] == state)
        return [round_ for round_ in rounds if round_ > 0]

    def _set_aside(self, state: str, round_: int, new_state: str) -> None:
        self._disk.remove(self._path(round_, new_state))
        self._disk.rename(self._path(round_, state), self._path(round_, new_state))

    def _drop(self, state: str, round_: int) -> None:
        """Rename first: a half-removed checkpoint must not look like a damaged one."""
        partial = self._partial(round_)
        self._disk.remove(partial)
        self._disk.rename(self._path(round_, state), partial)
        self._disk.remove(partial)

    def _path(self, round_: int, state: str = _CURRENT) -> Path:
        return self._folder / f"{state}-{round_:08d}"

    def _partial(self, round_: int) -> Path:
        return self._folder / f".round-{round_:08d}.partial"

    def _error(self, action: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self._folder}: cannot {action} ({error.strerror or error}); free some space or "
            "check the disk, and start again to resume from the previous checkpoint"
        )
