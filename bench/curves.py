"""A run's held-out AUC over rounds and seconds, and when it reached a target."""

from __future__ import annotations

from dataclasses import dataclass, field

Point = tuple[int, float, float]  # rounds done, seconds, AUC


@dataclass(frozen=True)
class Run:
    """One run: its evaluations (their own time not counted) and auto's choices, if any."""

    curve: list[Point]
    choices: list[str] = field(default_factory=list)

    def reached(self, target: float) -> tuple[float, float] | None:
        """Rounds and seconds to a target AUC, interpolated linearly between two evaluations."""
        before: Point = (0, 0.0, 0.5)
        for now in self.curve:
            if now[2] >= target:
                share = (target - before[2]) / (now[2] - before[2])
                if before[0] >= now[0]:  # a stage was rolled back in between
                    share = 1.0
                return (
                    before[0] + share * (now[0] - before[0]),
                    before[1] + share * (now[1] - before[1]),
                )
            before = now
        return None

    def best_by_share(self, share: float) -> float:
        """The best AUC within this share of the rounds that the run needs for its best AUC."""
        last = max(self.curve, key=lambda point: point[2], default=(0, 0.0, 0.5))[0]
        return self.best_by(share * last)

    def best_by(self, rounds: float) -> float:
        """The best AUC in the first `rounds` rounds; 0.5 if there is no evaluation."""
        return max((auc for done, _, auc in self.curve if done <= rounds), default=0.5)
