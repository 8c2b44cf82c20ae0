"""Decides whether a process grew: its last quarter against its first half after a warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .samples import Sample

WARM_UP, FIRST_UNTIL, LAST_FROM = 1 / 8, 1 / 2, 3 / 4  # as fractions of the run
MIN_SAMPLES = 3  # in each of the two windows
# How much the median may grow: a share of it, and an amount.
LIMITS: dict[str, tuple[float, float]] = {
    "rss_mib": (0.05, 16.0),
    "threads": (0.0, 3.0),
    "descriptors": (0.0, 3.0),
    "checkpoints": (0.0, 1.0),
}


@dataclass(frozen=True)
class Finding:
    """One quantity of one party: medians and peaks of both windows, and the trend."""

    quantity: str
    first: float
    last: float
    limit: float  # of `last`
    first_peak: float
    last_peak: float
    per_hour: float  # slope of a straight line through all samples after the warm-up

    @property
    def is_flat(self) -> bool:
        """Whether it stayed within its limit."""
        return self.last <= self.limit

    @property
    def problem(self) -> str:
        """What grew, if it did."""
        return (
            f"{self.quantity} grew from {self.first:g} to {self.last:g}, "
            f"expected at most {self.limit:g}"
        )


def judge(samples: Sequence[Sample], minutes: float) -> list[Finding]:
    """A finding for each quantity with a limit; raises ValueError for too few samples."""
    warm = [s for s in samples if s.minute >= WARM_UP * minutes]
    first = [s for s in warm if s.minute <= FIRST_UNTIL * minutes]
    last = [s for s in warm if s.minute >= LAST_FROM * minutes]
    if min(len(first), len(last)) < MIN_SAMPLES:
        raise ValueError(
            f"expected at least {MIN_SAMPLES} samples in each window, "
            f"got {len(first)} and {len(last)}"
        )
    findings = []
    for quantity, (share, amount) in LIMITS.items():
        before, after, through = (
            [float(getattr(s, quantity)) for s in window] for window in (first, last, warm)
        )
        findings.append(
            Finding(
                quantity=quantity,
                first=median(before),
                last=median(after),
                limit=median(before) * (1 + share) + amount,
                first_peak=max(before),
                last_peak=max(after),
                per_hour=_slope([s.minute / 60 for s in warm], through),
            )
        )
    return findings


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the least-squares line."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
