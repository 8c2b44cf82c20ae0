"""The faults of a run: drawn from its seed, injected by the nemesis, none after FAULTS_END_S.

A fault is due at a time, at a party's n-th send or at its n-th disk operation, so that many seeds
cover every point.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from celu.checkpoint.generations import FOLDER
from celu.checkpoint.identity import FILE, read_identity
from celu.event_log import LOG
from chaos.checkpoint_writer import RUN
from chaos.disk import Interruption
from chaos.log_file import is_resumable
from chaos.network import Direction, Network, Tampering
from chaos.party_process import Party
from chaos.simulator import Killed, Simulator

FAULTS_END_S = 60.0  # no faults after this time
_NUM_FAULTS = (1, 1, 1, 2, 2, 3, 5)  # mostly few; many seeds cover the combinations
_NETWORK = ("partition", "delay", "reset", "drop", "duplicate", "reorder", "truncate", "flip")
_PROCESS = ("kill", "pause", "blackout", "power cut")
_DISK = ("full disk", "disk error", "failed sync", "bit rot")
_FOLDER = ("lost checkpoints", "damaged log")  # of the run folder of a party that crashes
KINDS = (*_PROCESS, *_NETWORK, *_DISK, *_FOLDER)
_COUNTABLE = ("kill", "power cut")  # may also be due at a send or a disk operation
_AT_OPERATION = ("full disk", "disk error", "failed sync")


@dataclass(frozen=True)
class Scale:
    """The length of a run without faults: seconds, and a party's sends and disk operations."""

    seconds: float
    sends: int
    operations: int


@dataclass(frozen=True)
class Fault:
    """One fault of a run."""

    kind: str
    party: str
    peer: str  # for a network fault, the other side
    at: float | int  # seconds, or a count
    by: str  # what `at` counts: "time", "sends" or "operations"
    seconds: float  # how long it lasts, for faults that last
    fraction: float  # of a write that succeeds or a record that arrives; draws the other details

    def __str__(self) -> str:
        when = f"at {self.at:.2f} s" if self.by == "time" else f"at {self.at} {self.by}"
        where = f"{self.party}-{self.peer}" if self.kind in _NETWORK else self.party
        return f"{self.kind} of {where} {when}"


def draw(
    rng: random.Random, names: Sequence[str], scale: Scale, kinds: Sequence[str] = KINDS
) -> list[Fault]:
    """Draw the faults of a run; the first name is the guest's, which has all the links."""
    faults = []
    for _ in range(rng.choice(_NUM_FAULTS)):
        kind = rng.choice(list(kinds))
        host = rng.choice(list(names[1:]))
        pair = [names[0], host] if rng.random() < 0.5 else [host, names[0]]
        by = "time"
        if kind in _COUNTABLE:
            by = rng.choice(["time", "sends", "operations"])
        elif kind in _FOLDER:
            by = rng.choice(["time", "operations"])
        elif kind in _AT_OPERATION:
            by = "operations"
        counts = {"sends": scale.sends, "operations": scale.operations}
        stretch = rng.choice([1.2, 1.2, 1.2, 15.0])
        at = rng.uniform(0.0, stretch * scale.seconds)
        if by in counts:
            at = rng.randint(1, 1 + int(1.3 * counts[by]))
        seconds = rng.choice([rng.uniform(0.01, 6.0), rng.uniform(0.01, 40.0)])
        faults.append(Fault(kind, pair[0], pair[1], at, by, seconds, rng.random()))
    return faults


class Nemesis:
    """Injects the faults of a run, and counts those that took effect."""

    def __init__(
        self,
        faults: Sequence[Fault],
        simulator: Simulator,
        network: Network,
        parties: dict[str, Party],
    ) -> None:
        self.injected: Counter[str] = Counter()
        self._simulator = simulator
        self._network = network
        self._parties = parties
        self._counts: Counter[tuple[str, str]] = Counter()
        self._due_at_count = {
            (fault.party, fault.by, int(fault.at)): fault for fault in faults if fault.by != "time"
        }
        self._full_until: dict[str, float] = {}
        self._failing: set[str] = set()  # parties whose next sync fails
        for fault in faults:
            if fault.by == "time":
                simulator.after(fault.at, partial(self._inject, fault))
        for party in parties.values():
            self._hook_disk(party)
        simulator.after(FAULTS_END_S, self._end_faults)

    def count(self, party: str, what: str) -> Fault | None:
        """Count a party's send or disk operation; returns the fault that is due at it."""
        self._counts[party, what] += 1
        return self._due_at_count.pop((party, what, self._counts[party, what]), None)

    def max_count(self, what: str) -> int:
        """The number of sends or operations of the party with the most."""
        return max((n for (_, counted), n in self._counts.items() if counted == what), default=0)

    def before_send(self, party: str) -> None:
        """Count a send; raises Killed if a fault kills the party at this send."""
        fault = self.count(party, "sends")
        if fault is not None:
            self._record(fault)
            raise Killed(power_cut=fault.kind == "power cut")

    def _hook_disk(self, party: Party) -> None:
        """Let the party's disk ask for faults before each operation."""

        def sync_fails() -> bool:
            fails = party.name in self._failing
            self._failing.discard(party.name)
            return fails

        party.disk.interrupt = lambda operation: self._interrupt(party.name, operation)
        party.disk.sync_fails = sync_fails

    def _interrupt(self, party: str, operation: str) -> Interruption | None:
        fault = self.count(party, "operations")
        if fault is not None and fault.kind in _FOLDER:
            self._simulator.after(0.0, partial(self._inject, fault))
        elif fault is not None:
            self._record(fault)
            error = self._operation_error(fault)
            if error is not None:
                return Interruption(error, fault.fraction)
        frees = operation in ("remove", "truncate")
        if self._full_until.get(party, 0.0) > self._simulator.now and not frees:
            return Interruption(_os_error(errno.ENOSPC), 0.5)
        return None

    def _operation_error(self, fault: Fault) -> BaseException | None:
        """What a disk operation raises; None if only its sync fails."""
        if fault.kind in _COUNTABLE:
            return Killed(power_cut=fault.kind == "power cut")
        if fault.kind == "full disk":
            self._full_until[fault.party] = self._simulator.now + fault.seconds
            return _os_error(errno.ENOSPC)
        if fault.kind == "disk error":
            return _os_error(errno.EIO)
        self._failing.add(fault.party)
        return None

    def _inject(self, fault: Fault) -> None:
        """Inject a fault that is due at a time: in a process, the network or a disk at rest."""
        if fault.kind in _NETWORK:
            self._record(fault)
            self._inject_network(fault)
            return
        party = self._parties[fault.party]
        if fault.kind == "bit rot":
            self._record(fault)
            path = party.disk.flip_bit(self._simulator.rng, FOLDER)
            self._simulator.log(fault.party, f"flipped a bit of {path}")
            return
        if fault.kind in _FOLDER:
            self._inject_folder(fault, party)
            return
        targets = list(self._parties.values()) if fault.kind == "blackout" else [party]
        for target in targets:
            if target.running is None:
                continue
            self._record(fault)
            if fault.kind == "pause":
                target.running.process.pause(fault.seconds)
            else:
                target.running.process.kill(power_cut=fault.kind != "kill")

    def _inject_folder(self, fault: Fault, party: Party) -> None:
        """Let a party crash with a part of its run folder, which must still identify its run."""
        disk, rng = party.disk, self._simulator.rng
        if fault.kind == "lost checkpoints":
            if read_identity(RUN, disk) is None or not disk.names(RUN / FOLDER):
                return
        elif not is_resumable(disk):
            return
        self._record(fault)
        if party.running is not None:
            party.running.process.kill()
        if fault.kind == "lost checkpoints":
            disk.lose(RUN / FOLDER)
            party.durable.lose()
            party.is_done = False
        elif fault.fraction < 0.3 and party.checkpoints().scan()[1] != [0]:
            self._simulator.log(fault.party, f"lost {FILE}")
            disk.lose(RUN / FILE)
        else:
            disk.damage(RUN / LOG, partial(_damaged, rng))

    def _inject_network(self, fault: Fault) -> None:
        network, direction = self._network, (fault.party, fault.peer)
        if fault.kind == "partition":
            network.partition(direction, fault.seconds)
            if fault.fraction < 0.7:  # else in one direction only
                network.partition(direction[::-1], fault.seconds)
        elif fault.kind == "delay":
            network.delay(direction, fault.seconds)
        elif fault.kind == "reset":
            network.reset(direction)
        elif fault.kind == "reorder":
            network.tamper(direction, self._swap(direction))
        else:
            network.tamper(direction, _tampering(fault))

    def _swap(self, direction: Direction) -> Tampering:
        def hold_back(record: bytes) -> list[bytes]:
            self._network.tamper(direction, lambda later: [later, record])
            return []

        return hold_back

    def _end_faults(self) -> None:
        self._simulator.log("", "no faults from here on")
        self._network.heal()
        self._due_at_count.clear()
        self._full_until.clear()
        self._failing.clear()

    def _record(self, fault: Fault) -> None:
        self.injected[fault.kind] += 1
        self._simulator.log(fault.party, f"nemesis: {fault}")


def _damaged(rng: random.Random, log: bytes) -> bytes:
    """A log with a bad byte, without its end, or without some bytes in the middle."""
    start = rng.randrange(len(log) + 1)
    after = rng.choice([start + 1, start + rng.randrange(200), len(log)])
    bad = bytes([rng.randrange(256)]) if after == start + 1 else b""
    return log[:start] + bad + log[after:]


def _tampering(fault: Fault) -> Tampering:
    def tamper(record: bytes) -> list[bytes]:
        if fault.kind == "drop":
            return []
        if fault.kind == "duplicate":
            return [record, record]
        if fault.kind == "truncate":
            return [record[: int(fault.fraction * len(record))]]
        flipped = bytearray(record)
        flipped[_position(fault.fraction, len(record))] ^= 1 << int(fault.fraction * 1e6) % 8
        return [bytes(flipped)]

    return tamper


def _position(fraction: float, length: int) -> int:
    """A byte near the start or the end: the length of a handshake record differs between runs."""
    if fraction < 0.7:
        return int(fraction / 0.7 * min(length, 200))
    return length - 1 - int((fraction - 0.7) / 0.3 * min(length, 32))


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
