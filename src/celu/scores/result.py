"""The result of an evaluation: figures only, never an id."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from celu.metrics.names import Output
from celu.page.assemble import replace_non_finite
from celu.scores.tables import Bin, Curve

FORMAT = "celu-evaluation-1"


@dataclass(frozen=True)
class Figure:
    """A metric (NaN if undefined) and its 95 % interval, if there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Lift(Figure):
    """The metric of the model minus that of the other; `excludes_zero` is about its interval.

    `is_better`: whether the model's metric is better, not necessarily beyond chance.
    """

    excludes_zero: bool = False
    is_better: bool = False

    @property
    def verdict(self) -> str:
        """better, worse or unclear."""
        if not self.excludes_zero:
            return "unclear"
        return "better" if self.is_better else "worse"


@dataclass(frozen=True)
class Group:
    """Rows with one value of a column (all rows: no column), and their metrics by name.

    `note` says why there are none, or what they leave out. `against` and `lift` are for an
    evaluation of two models.
    """

    column: str | None
    value: str | None
    rows: int
    metrics: dict[str, Figure]
    against: dict[str, Figure]
    lift: dict[str, Lift]
    note: str = ""


@dataclass(frozen=True)
class Rest:
    """Slices of a column that are not shown: those beyond the largest, and very small ones."""

    column: str
    slices: int
    rows: int


@dataclass(frozen=True)
class RowCounts:
    """Which rows were evaluated, and how many were not because a part is missing."""

    evaluated: int
    without_label: int = 0  # scored, but no label
    without_score: int = 0  # labelled, but no score, of neither model
    not_in_both: int = 0  # labelled, but scored by one of the two models only


@dataclass(frozen=True)
class Details:
    """Tables and curves of one model over all rows.

    `bins` are of the score (binary, regression) or of the highest probability (multiclass, with
    whether that class is right as the label). `calibration_error` has no interval: the bootstrap
    overestimates it. Curves are of binary outputs.
    """

    bins: tuple[Bin, ...]
    calibration_error: float | None = None
    roc: Curve | None = None
    precision_recall: Curve | None = None


@dataclass(frozen=True)
class ScoreEvaluation:
    """How good the scores of a model are, and how much better than those of another model.

    `slices` are by column, the largest first. `fallback` compares rows that a fallback scored with
    the others, if both occur.
    """

    model: str
    against_model: str | None
    output: Output
    rows: RowCounts
    resamples: int
    seed: int
    overall: Group
    slices: tuple[Group, ...]
    rest: tuple[Rest, ...]
    fallback: tuple[Group, ...]
    details: Details
    against_details: Details | None
    weighted: bool = False  # whether rows count by weights of their own

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics over all rows."""
        return {name: figure.value for name, figure in self.overall.metrics.items()}

    def to_json(self) -> dict[str, Any]:
        """All figures as plain JSON values; undefined ones are null."""
        found: dict[str, Any] = replace_non_finite({"format": FORMAT, **asdict(self)})
        return found


def make_lift(higher_is_better: bool, value: float, bounds: tuple[float, float] | None) -> Lift:
    """The lift of a metric, with the interval of the paired resamples."""
    is_better = math.copysign(1, value) == (1 if higher_is_better else -1) and value != 0
    if bounds is None:
        return Lift(value, is_better=is_better)
    low, high = bounds
    return Lift(value, low, high, excludes_zero=low > 0 or high < 0, is_better=is_better)
