"""Evaluates scores: metrics with intervals, by slice, and in comparison with another model.

    result = celu.evaluate("scores.parquet", "y.parquet", by=["city"], against="alone.parquet")
    result.overall.lift["auc"].low

It runs at one party, on files or arrays, and uses no network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from celu.config.schema import ClassLabel
from celu.errors import ConfigError, DataError
from celu.metrics.measure import BinaryMeasure, Measure, make_measure
from celu.metrics.names import METRICS, Output
from celu.metrics.own import Metric, MetricLike, as_metrics
from celu.metrics.ranking import Values
from celu.metrics.values import Labels
from celu.scores.arrays import rows_from_arrays
from celu.scores.bootstrap import bootstrap, interval
from celu.scores.result import (
    Details,
    Figure,
    Group,
    Rest,
    ScoreEvaluation,
    make_lift,
)
from celu.scores.rows import Rows, SliceColumn, rows_from_files
from celu.scores.tables import calibration_error, make_bins, precision_recall_curve, roc_curve

RESAMPLES = 1000
MIN_RESAMPLES, MAX_RESAMPLES = 100, 100_000
MIN_ROWS = 100
MAX_SLICES = 50
# The value of a smaller slice may be one person's, so it is counted and not shown.
MIN_NAMED_ROWS = 10
Progress = Callable[[str], None]


def evaluate(
    scores: Path | str | Any,
    labels: Path | str | Any = None,
    *,
    by: Sequence[str] | Mapping[str, Any] = (),
    against: Path | str | Any = None,
    output: Output | None = None,
    classes: Sequence[ClassLabel] | None = None,
    fallback: Any = None,
    id_column: str = "id",
    label_column: str = "label",
    weight_column: str | None = None,
    weights: Any = None,
    metrics: Sequence[MetricLike] = (),
    resamples: int = RESAMPLES,
    seed: int = 1,
    min_rows: int = MIN_ROWS,
    progress: Progress = lambda text: None,
) -> ScoreEvaluation:
    """Evaluate a scores file and a labels file, or two arrays.

    With files, `by` names columns of the labels file, or "hosts", which the scores file has, and
    `against` is the scores file of another model. All figures are then of the rows that both files
    score. The scores of a run's held-out rows (`scores.parquet` in its folder) have labels of their
    own. With arrays, `by` has an array for each name, and `output` ("binary", "multiclass" or
    "regression") is required; labels that are text also need `classes`, as predictions have them.
    How much each row counts says the column `weight_column` of the labels file, otherwise the
    column `weight` of a run's own scores or, with arrays, `weights`; the user's own metrics do not
    know it.
    `metrics` are the user's own (`celu.metric`), besides all that fit the output. Intervals are at
    95 %, from `resamples` resamples of the rows; 0 makes none. A slice with fewer than `min_rows`
    rows, or a single class, gets a note and no figures. Raises ConfigError, DataError, or
    ModelError if one of the user's own metrics fails.
    """
    if resamples != 0 and not MIN_RESAMPLES <= resamples <= MAX_RESAMPLES:
        raise ConfigError(
            f"resamples: expected {MIN_RESAMPLES} to {MAX_RESAMPLES:,}, or 0 for no intervals, "
            f"got {resamples}"
        )
    if seed < 0 or min_rows < 1:
        raise ConfigError(
            f"expected a seed of at least 0 and min_rows of at least 1, got {seed} and {min_rows}"
        )
    kinds = {isinstance(g, str | Path) for g in (scores, labels, against) if g is not None}
    if len(kinds) > 1:
        raise ConfigError("scores, labels, against: expected files or arrays, got both")
    if isinstance(scores, str | Path):
        others = (output, fallback, classes, weights)
        if any(given is not None for given in others) or isinstance(by, Mapping):
            raise ConfigError(
                "output, fallback, classes, weights and arrays in by: expected for arrays, got "
                "files"
            )
        rows = rows_from_files(
            Path(scores),
            None if labels is None else Path(labels),
            by=by,
            against=None if against is None else Path(against),
            id_column=id_column,
            label_column=label_column,
            weight_column=weight_column,
        )
    else:
        if weight_column is not None:
            raise ConfigError("weight_column: expected for files, got arrays; pass weights")
        if not isinstance(by, Mapping) and len(by):
            raise ConfigError("by: expected an array for each name, as scores are an array")
        if labels is None:
            raise ConfigError("labels: expected an array, as scores are an array")
        columns = by if isinstance(by, Mapping) else {}
        rows = rows_from_arrays(
            output,
            scores,
            labels,
            by=columns,
            against=against,
            fallback=fallback,
            classes=classes,
            weights=weights,
        )
    own = [one for one in as_metrics(metrics) or () if isinstance(one, Metric)]
    if len(own) < len(metrics):
        raise ConfigError(
            "metrics: expected only your own (celu.metric): all built-in ones that fit the output "
            "are reported"
        )
    return _Evaluator(rows, own, resamples, seed, min_rows, progress).run()


class _Evaluator:
    """Evaluates groups of rows; each has resamples of its own, so memory is that of one group."""

    def __init__(
        self,
        rows: Rows,
        own: Sequence[Metric],
        resamples: int,
        seed: int,
        min_rows: int,
        progress: Progress,
    ) -> None:
        self._rows = rows
        self._own = own
        self._higher_is_better = METRICS[rows.output] | {m.name: m.higher_is_better for m in own}
        self._resamples = resamples
        self._seed = seed
        self._min_rows = min_rows
        self._progress = progress

    def run(self) -> ScoreEvaluation:
        rows = self._rows
        if rows.weights is not None and not rows.weights.any():
            raise DataError("expected weights above 0 in the evaluated rows, got 0 in all")
        if rows.output == "binary" and not self._has_several_labels(slice(None)):
            raise DataError(
                "expected labels of both classes, got one class only; evaluate more rows"
            )
        overall = self._measured(None, None, np.arange(len(rows.labels)))
        slices: list[Group] = []
        rest: list[Rest] = []
        for name, column in rows.by.items():
            self._slice(name, column, slices, rest)
        other = None if rows.against is None else self._details(rows.against)
        return ScoreEvaluation(
            model=rows.model,
            against_model=rows.against_model,
            output=rows.output,
            rows=rows.counts,
            resamples=self._resamples,
            seed=self._seed,
            overall=overall,
            slices=tuple(slices),
            rest=tuple(rest),
            fallback=self._by_fallback(),
            details=self._details(rows.scores),
            against_details=other,
            weighted=rows.weights is not None,
        )

    def _has_several_labels(self, at: Any) -> bool:
        """Whether rows that count have different labels."""
        labels, weights = self._rows.labels[at], self._rows.weights
        return len(np.unique(labels if weights is None else labels[weights[at] > 0])) > 1

    def _slice(self, name: str, column: SliceColumn, slices: list[Group], rest: list[Rest]) -> None:
        counts = np.bincount(column.codes, minlength=len(column.values))
        codes: list[int] = np.flatnonzero(counts).tolist()
        largest = sorted(codes, key=lambda code: (-counts[code], column.values[code]))
        shown = [code for code in largest[:MAX_SLICES] if counts[code] >= MIN_NAMED_ROWS]
        for code in shown:
            at = np.flatnonzero(column.codes == code)
            slices.append(self._group(name, column.values[code], at))
        if len(shown) < len(largest):
            hidden = largest[len(shown) :]
            rest.append(Rest(name, len(hidden), int(counts[hidden].sum())))

    def _by_fallback(self) -> tuple[Group, ...]:
        flags = self._rows.fallback
        if flags is None or flags.all() or not flags.any():
            return ()
        return tuple(
            self._group("fallback", text, np.flatnonzero(flags == flag))
            for flag, text in ((False, "no"), (True, "yes"))
        )

    def _group(self, column: str, value: str, at: npt.NDArray[np.int64]) -> Group:
        note = ""
        if len(at) < self._min_rows:
            note = f"fewer than {self._min_rows} rows"
        elif self._rows.output != "regression" and not self._has_several_labels(at):
            note = "one class only"
        if note:
            return Group(column, value, len(at), {}, {}, {}, note)
        return self._measured(column, value, at)

    def _measured(self, column: str | None, value: str | None, at: npt.NDArray[np.int64]) -> Group:
        rows = self._rows
        labels = rows.labels[at]
        models = [rows.scores] if rows.against is None else [rows.scores, rows.against]
        weights = None if rows.weights is None else rows.weights[at]
        measures = [
            make_measure(rows.output, scores[at], labels, own=self._own, weights=weights)
            for scores in models
        ]
        ones = np.ones((len(at), 1), np.uint8)
        values = [
            {name: float(value_R[0]) for name, value_R in measure.measure(ones).items()}
            for measure in measures
        ]
        resampled = self._resample(measures, len(at), "all rows" if column is None else column)
        figures = [_figures(*one) for one in zip(values, resampled, strict=True)]
        lift = {}
        if len(models) > 1:
            for name, ours in values[0].items():
                paired = resampled[0][name] - resampled[1][name] if self._resamples else None
                bounds = None if paired is None else interval(paired)
                lift[name] = make_lift(self._higher_is_better[name], ours - values[1][name], bounds)
        other = figures[1] if len(models) > 1 else {}
        return Group(column, value, len(at), figures[0], other, lift, self._absent(labels))

    def _absent(self, labels: Labels) -> str:
        """A note on classes without labels, which have no AUC."""
        if self._rows.output != "multiclass":
            return ""
        num_classes = self._rows.scores.shape[1]
        num_absent = num_classes - len(np.unique(labels))
        return f"{num_absent} of {num_classes} classes without labels" if num_absent else ""

    def _resample(
        self, measures: Sequence[Measure], num_rows: int, what: str
    ) -> list[dict[str, Values]]:
        if not self._resamples:
            return [{} for _ in measures]
        return bootstrap(
            measures,
            num_rows,
            self._resamples,
            self._seed,
            lambda done: self._progress(f"{what}: {done:,} of {self._resamples:,} resamples"),
        )

    def _details(self, scores: npt.NDArray[Any]) -> Details:
        output, labels, weights = self._rows.output, self._rows.labels, self._rows.weights
        if output == "regression":
            return Details(make_bins(scores, labels, weights, are_shares=False))
        if output == "multiclass":
            top = scores.argmax(axis=1)
            of_top = scores[np.arange(len(top)), top]
            bins = make_bins(of_top, top == labels, weights, are_shares=True)
            return Details(bins, calibration_error(bins))
        bins = make_bins(scores, labels, weights, are_shares=True)
        ranking = BinaryMeasure(scores, labels).ranking
        return Details(
            bins,
            calibration_error(bins),
            roc_curve(ranking, weights),
            precision_recall_curve(ranking, weights),
        )


def _figures(values: Mapping[str, float], resampled: Mapping[str, Values]) -> dict[str, Figure]:
    found = {}
    for name, value in values.items():
        bounds = interval(resampled[name]) if name in resampled else None
        found[name] = Figure(value, *(bounds or (None, None)))
    return found
