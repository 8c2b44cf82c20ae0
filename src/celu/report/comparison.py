"""What federation adds: the scores of a run compared with those of the guest alone.

`celu baseline` writes its run into the folder `baseline` of the run's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celu.errors import CeluError
from celu.metrics.names import HIGHER_IS_BETTER, title_of
from celu.metrics.own import MetricLike
from celu.record.run import RunRecord
from celu.record.summary import lower_is_better
from celu.run_folder import BASELINE, SCORES
from celu.scores.evaluation import MIN_RESAMPLES, RESAMPLES, evaluate
from celu.scores.file import read_scores
from celu.scores.result import ScoreEvaluation, make_lift

_Row = list[Any]  # a metric's title, both values, their difference, its interval and verdict
# Rows times resamples: a few seconds. The intervals of more rows than that are narrow anyway.
_MAX_RESAMPLED_ROWS = 50_000_000


def compare(run: Path, baseline: Path, metrics: Sequence[MetricLike] = ()) -> ScoreEvaluation:
    """The run's metrics on its held-out rows, and their lift over those of its baseline.

    `metrics` are the guest's own, besides the built-in ones. Raises DataError or ConfigError if one
    of the two has no scores, or of other rows; ModelError if one of the metrics fails.
    """
    resamples = min(RESAMPLES, _MAX_RESAMPLED_ROWS // max(1, len(read_scores(run / SCORES))))
    return evaluate(
        run / SCORES,
        against=baseline / SCORES,
        metrics=metrics,
        resamples=resamples if resamples >= MIN_RESAMPLES else 0,
    )


def what_federation_adds(record: RunRecord) -> dict[str, Any] | None:
    """The section of a report: a row for each metric, and what to know about it; or None.

    It is of a guest's run with a baseline in its folder.
    """
    if record.role != "guest" or not (record.path / BASELINE).is_dir():
        return None
    try:
        alone = RunRecord(record.path / BASELINE)
        found = compare(record.path, alone.path)
    except CeluError as error:
        return {"metrics": [], "caption": "", "notes": [f"not compared: {error}"]}
    metrics: list[_Row] = [
        [
            title_of(name),
            figure.value,
            found.overall.against[name].value,
            lift.value,
            None if lift.low is None else [lift.low, lift.high],
            lift.verdict,
        ]
        for name, figure in found.overall.metrics.items()
        for lift in [found.overall.lift[name]]
    ]
    metrics += _own_metrics(record, alone, found)
    weighted = ", by their weights" if found.weighted else ""
    rows = f"{found.rows.evaluated:,} held-out rows that both score{weighted}"
    how = f"; intervals from {found.resamples:,} resamples" if found.resamples else ""
    notes = [
        f"{name}: {with_hosts} with hosts, {without} in the baseline"
        for name, (with_hosts, without) in differences(record.job, alone.job).items()
    ]
    return {"metrics": metrics, "caption": f"On {rows}{how}.", "notes": notes}


def _own_metrics(record: RunRecord, alone: RunRecord, found: ScoreEvaluation) -> list[_Row]:
    """The rows of the guest's own metrics, as both runs recorded them at their ends.

    A report runs nobody's code, so they have no intervals.
    """
    if found.rows.not_in_both:
        return []
    lower = lower_is_better(record)
    ours, theirs = (_last_metrics(one) for one in (record, alone))
    rows: list[_Row] = []
    for name in ours.keys() & theirs.keys() - HIGHER_IS_BETTER.keys():
        lift = make_lift(name not in lower, ours[name] - theirs[name], None)
        rows.append([name, ours[name], theirs[name], lift.value, None, lift.verdict])
    return sorted(rows, key=lambda row: str(row[0]))


def _last_metrics(record: RunRecord) -> Mapping[str, float]:
    """The metrics of the test rows at the end of a run."""
    if record.tested is not None:
        return record.tested.metrics
    return record.evaluations[-1].metrics if record.evaluations else {}


def differences(
    job: Mapping[str, Any], baseline: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """The settings of two contracts that differ, by dotted name; hosts and `auto` always do."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys([*job, *baseline]):
        if prefix + name in ("hosts", "method.auto"):
            continue
        ours, theirs = job.get(name), baseline.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            found |= differences(ours, theirs, f"{prefix}{name}.")
        elif ours != theirs:
            found[prefix + name] = ours, theirs
    return found
