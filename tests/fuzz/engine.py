"""Delivers mutated frames to everything that reads a peer's bytes, and counts what became of them.

A frame is taken, or refused with an error of celu's own and nothing changed. Whatever else is
raised ends the fuzzing with the seed and the frame at which it happened.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from celu.errors import CeluError
from celu.transport.message import Message
from celu.transport.wire import check_finite, decode_header
from decoding import decode

from .frames import MUTATIONS, Frame, joined
from .targets import Specs, Target

MAX_STREAM = 3
WARM_UP = 0.05  # of the frames, before memory is looked at


@dataclass
class Report:
    """What became of so many frames."""

    frames: int = 0
    taken: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    by_target: Counter[str] = field(default_factory=Counter)
    growth_mib: float = 0.0

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.frames} frames: {self.taken} taken, {self.refusals.total()} refusals"
        yield from (f"  {name}: {count}" for name, count in self.refusals.most_common())
        yield from (f"    {name}: {count}" for name, count in self.by_target.most_common())
        yield f"peak memory grew by {self.growth_mib:.1f} MiB after the first {WARM_UP:.0%}"


def fuzz(
    targets: Sequence[Target],
    frames: int,
    seed: int,
    tell: Callable[[int], None] = lambda done: None,
) -> Report:
    """Deliver about so many frames; raises AssertionError for what may not happen."""
    report, random = Report(), Random(seed)
    weights = [target.weight for target in targets]
    start = 0
    while report.frames < frames:
        target = random.choices(targets, weights)[0]
        stream = [
            Frame.of(random.choice(target.messages), number)
            for number in range(random.randint(1, MAX_STREAM))
        ]
        pieces = random.choice(MUTATIONS)(random, stream)
        try:
            attack(target, pieces, report)
        except Exception as error:
            raise AssertionError(
                f"{target.name}: {type(error).__name__} at frame {report.frames} of seed {seed}"
            ) from error
        report.frames += len(stream)
        if not start and report.frames >= frames * WARM_UP:
            start = _peak_kib()
        tell(report.frames)
    report.growth_mib = (_peak_kib() - start) / 1024
    return report


def attack(target: Target, pieces: list[bytes], report: Report) -> None:
    """Deliver a stream to a reader that goes on until it refuses."""
    before = target.state()
    try:
        for message in deliver(pieces, target.specs):
            target.read(message)
            report.taken += 1
            target.reset()
            before = target.state()
    except CeluError as error:
        report.refusals[type(error).__name__] += 1
        report.by_target[target.name] += 1
        assert target.state() == before, "a refused message changed something"
        assert len(str(error)) < 5000, "an error repeats what the peer sent"


def deliver(pieces: list[bytes], specs: Specs) -> Iterator[Message]:
    """What a link makes of the pieces, and in the same way."""
    received = iter(pieces)
    for sequence, data in enumerate(received):
        header = decode_header(data, sequence, specs)
        assert header.length <= sum(map(len, pieces)) + (1 << 18), "a claim would cost memory"
        message = decode(header, received)
        if message.tensor is not None:
            check_finite(message.tensor, message.kind.name, message.round)
        yield message


def take_all(target: Target) -> int:
    """Deliver a target's own messages, unchanged; how many were taken."""
    taken = 0
    for message in target.messages:
        for arrived in deliver(joined([Frame.of(message, 0)]), target.specs):
            target.read(arrived)
            target.reset()
            taken += 1
    return taken


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
