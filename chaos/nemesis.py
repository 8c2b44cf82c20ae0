"""What goes wrong in a run, and when: drawn from its seed, and over after a while.

A fault strikes at a time, or at a party's n-th send or n-th operation of its disk, so that over
many seeds every point is met.
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
from chaos.disk import Interruption
from chaos.life import Party
from chaos.wire import Network, Tampering
from chaos.world import Killed, World

QUIET_S = 60.0  # nothing goes wrong after so long
_NUM_FAULTS = (1, 1, 1, 2, 2, 3, 5)  # few mostly: what they do together, many seeds show
_WIRE = ("partition", "delay", "reset", "drop", "duplicate", "reorder", "truncate", "flip")
_PROCESS = ("kill", "pause", "blackout", "power cut")
_DISK = ("full disk", "disk error", "failing sync", "rot")
KINDS = (*_PROCESS, *_WIRE, *_DISK)
_EXACT = ("kill", "power cut")  # may also strike at a send or at an operation
_AT_OPERATION = ("full disk", "disk error", "failing sync")


@dataclass(frozen=True)
class Scale:
    """How long an undisturbed run is: in seconds, and in a party's sends and disk operations."""

    seconds: float
    sends: int
    operations: int


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    party: str
    peer: str  # of a wire, its other side
    at: float | int  # seconds, or a count
    by: str  # what `at` counts: "time", "sends" or "operations"
    seconds: float  # how long it lasts, if it does
    fraction: float  # how much of a write gets through, which bit is flipped

    def __str__(self) -> str:
        when = f"at {self.at:.2f} s" if self.by == "time" else f"at {self.at} {self.by}"
        where = f"{self.party}-{self.peer}" if self.kind in _WIRE else self.party
        return f"{self.kind} of {where} {when}"


def draw(
    chance: random.Random, names: Sequence[str], scale: Scale, kinds: Sequence[str] = KINDS
) -> list[Fault]:
    """The faults of a run; the first name is the guest's, and every wire is one of its."""
    faults = []
    for _ in range(chance.choice(_NUM_FAULTS)):
        kind = chance.choice(list(kinds))
        host = chance.choice(list(names[1:]))
        pair = [names[0], host] if chance.random() < 0.5 else [host, names[0]]
        by = "time"
        if kind in _EXACT:
            by = chance.choice(["time", "sends", "operations"])
        elif kind in _AT_OPERATION:
            by = "operations"
        counted = {"sends": scale.sends, "operations": scale.operations}
        late = chance.choice([1.2, 1.2, 1.2, 15.0])
        at = chance.uniform(0.0, late * scale.seconds)
        if by in counted:
            at = chance.randint(1, 1 + int(1.3 * counted[by]))
        seconds = chance.choice([chance.uniform(0.01, 6.0), chance.uniform(0.01, 40.0)])
        faults.append(Fault(kind, pair[0], pair[1], at, by, seconds, chance.random()))
    return faults


class Nemesis:
    """Strikes as it was drawn, and counts what struck."""

    def __init__(
        self, faults: Sequence[Fault], world: World, network: Network, parties: dict[str, Party]
    ) -> None:
        self.struck: Counter[str] = Counter()
        self._world = world
        self._network = network
        self._parties = parties
        self._counts: Counter[tuple[str, str]] = Counter()
        self._counted = {
            (fault.party, fault.by, int(fault.at)): fault for fault in faults if fault.by != "time"
        }
        self._full_until: dict[str, float] = {}
        self._failing: set[str] = set()  # parties of which the next sync fails
        for fault in faults:
            if fault.by == "time":
                world.after(fault.at, partial(self._strike, fault))
        for party in parties.values():
            self._watch(party)
        world.after(QUIET_S, self._calm)

    def count(self, party: str, what: str) -> Fault | None:
        """One more of a party's sends or operations; the fault that is due there."""
        self._counts[party, what] += 1
        return self._counted.pop((party, what, self._counts[party, what]), None)

    def counted(self, what: str) -> int:
        """The most sends or operations that a party made."""
        return max((n for (_, counted), n in self._counts.items() if counted == what), default=0)

    def sends(self, party: str) -> None:
        """A party is about to send a message; raises Killed where it does not live to see it."""
        fault = self.count(party, "sends")
        if fault is not None:
            self._note(fault)
            raise Killed(power_cut=fault.kind == "power cut")

    def _watch(self, party: Party) -> None:
        """Have the party's disk ask before each operation."""

        def sync_fails() -> bool:
            fails = party.name in self._failing
            self._failing.discard(party.name)
            return fails

        party.disk.interrupt = lambda operation: self._interrupt(party.name, operation)
        party.disk.sync_fails = sync_fails

    def _interrupt(self, party: str, operation: str) -> Interruption | None:
        fault = self.count(party, "operations")
        if fault is not None:
            self._note(fault)
            error = self._at_operation(fault)
            if error is not None:
                return Interruption(error, fault.fraction)
        if self._full_until.get(party, 0.0) > self._world.now and operation != "remove":
            return Interruption(_failure(errno.ENOSPC), 0.5)
        return None

    def _at_operation(self, fault: Fault) -> BaseException | None:
        """What an operation ends with; None where only its sync is to fail."""
        if fault.kind in _EXACT:
            return Killed(power_cut=fault.kind == "power cut")
        if fault.kind == "full disk":
            self._full_until[fault.party] = self._world.now + fault.seconds
            return _failure(errno.ENOSPC)
        if fault.kind == "disk error":
            return _failure(errno.EIO)
        self._failing.add(fault.party)
        return None

    def _strike(self, fault: Fault) -> None:
        """At a time: whatever that does to a process, a wire or a disk at rest."""
        if fault.kind in _WIRE:
            self._note(fault)
            self._strike_wire(fault)
            return
        party = self._parties[fault.party]
        if fault.kind == "rot":
            self._note(fault)
            path = party.disk.rot(self._world.chance, FOLDER)
            self._world.note(fault.party, f"a bit of {path} is flipped")
            return
        targets = list(self._parties.values()) if fault.kind == "blackout" else [party]
        for target in targets:
            if target.life is None:
                continue
            self._note(fault)
            if fault.kind == "pause":
                target.life.process.pause(fault.seconds)
            else:
                target.life.process.kill(power_cut=fault.kind != "kill")

    def _strike_wire(self, fault: Fault) -> None:
        network, way = self._network, (fault.party, fault.peer)
        if fault.kind == "partition":
            network.cut(way, fault.seconds)
            if fault.fraction < 0.7:  # else in one direction only
                network.cut(way[::-1], fault.seconds)
        elif fault.kind == "delay":
            network.hold(way, fault.seconds)
        elif fault.kind == "reset":
            network.reset(way)
        elif fault.kind == "reorder":
            network.tamper(way, self._swap(way))
        else:
            network.tamper(way, _tampering(fault))

    def _swap(self, way: tuple[str, str]) -> Tampering:
        def hold_back(record: bytes) -> list[bytes]:
            self._network.tamper(way, lambda later: [later, record])
            return []

        return hold_back

    def _calm(self) -> None:
        self._world.note("", "from here on nothing goes wrong")
        self._network.calm()
        self._counted.clear()
        self._full_until.clear()
        self._failing.clear()

    def _note(self, fault: Fault) -> None:
        self.struck[fault.kind] += 1
        self._world.note(fault.party, f"nemesis: {fault}")


def _tampering(fault: Fault) -> Tampering:
    def tamper(record: bytes) -> list[bytes]:
        if fault.kind == "drop":
            return []
        if fault.kind == "duplicate":
            return [record, record]
        if fault.kind == "truncate":
            return [record[: int(fault.fraction * len(record))]]
        flipped = bytearray(record)
        flipped[_place(fault.fraction, len(record))] ^= 1 << int(fault.fraction * 1e6) % 8
        return [bytes(flipped)]

    return tamper


def _place(fraction: float, length: int) -> int:
    """Near the beginning or the end: in between, a handshake's lengths differ from run to run."""
    if fraction < 0.7:
        return int(fraction / 0.7 * min(length, 200))
    return length - 1 - int((fraction - 0.7) / 0.3 * min(length, 32))


def _failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))
