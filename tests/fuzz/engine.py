"""Delivers mutated frames to everything that reads a peer's bytes and counts the outcomes.

A frame is accepted, or refused with a CeluError and without side effects. Any other exception ends
the fuzzing with the seed and the number of the frame.
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
WARM_UP = 0.05  # share of the frames before memory is measured


@dataclass
class Report:
    """How many frames were accepted and refused."""

    frames: int = 0
    accepted: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    by_target: Counter[str] = field(default_factory=Counter)
    growth_mib: float = 0.0

    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield f"{self.frames} frames: {self.accepted} accepted, {self.refusals.total()} refusals"
        yield from (f"  {name}: {count}" for name, count in self.refusals.most_common())
        yield from (f"    {name}: {count}" for name, count in self.by_target.most_common())
        yield f"peak memory grew by {self.growth_mib:.1f} MiB after the first {WARM_UP:.0%}"


def fuzz(
    targets: Sequence[Target],
    frames: int,
    seed: int,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Deliver about `frames` frames; AssertionError for an outcome that may not happen."""
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
        on_progress(report.frames)
    report.growth_mib = (_peak_kib() - start) / 1024
    return report


def attack(target: Target, pieces: list[bytes], report: Report) -> None:
    """Deliver a stream to a reader until it refuses a message."""
    before = target.state()
    try:
        for message in deliver(pieces, target.specs):
            target.read(message)
            report.accepted += 1
            target.reset()
            before = target.state()
    except CeluError as error:
        report.refusals[type(error).__name__] += 1
        report.by_target[target.name] += 1
        assert target.state() == before, "a refused message had a side effect"
        assert len(str(error)) < 5000, "an error repeats what the peer sent"


def deliver(pieces: list[bytes], specs: Specs) -> Iterator[Message]:
    """The messages that a link would decode from the pieces."""
    received = iter(pieces)
    for sequence, data in enumerate(received):
        header = decode_header(data, sequence, specs)
        assert header.length <= sum(map(len, pieces)) + (1 << 18), (
            "an announced length would allocate memory"
        )
        message = decode(header, received)
        if message.tensor is not None:
            check_finite(message.tensor, message.kind.name, message.round)
        yield message


def accept_all(target: Target) -> int:
    """Deliver a target's own messages unchanged; returns how many were accepted."""
    accepted = 0
    for message in target.messages:
        for arrived in deliver(joined([Frame.of(message, 0)]), target.specs):
            target.read(arrived)
            target.reset()
            accepted += 1
    return accepted


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
