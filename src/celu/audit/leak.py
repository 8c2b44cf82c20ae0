"""How much an attack's scores say about labels: AUC, and the true positive rate at 1 % FPR.

An attack may be good only because it repeats what a good forecast says anyway. The "own" figures
therefore compare rows of similar forecasts only: rows are divided into bins by the guest's own
forecast, and each row is compared with rows of its bin. Guessing gives an AUC of 0.5 and a rate of
0.01. An AUC alone can hide that a few rows are fully exposed, so the rate stands beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from celu.metrics.ranking import Ranking

Floats = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
MAX_FPR = 0.01
_BINS = 20
_BIN_ROWS = 250  # at least, on average
_MIN_NEGATIVES = 50  # for a rate: above all of fewer are more than 2 % of random scores
_MIN_NEGATIVES_IN_BIN = 99  # many bins together would show that a random rate is above 1 %


class Leak(BaseModel):
    """What an attack learns; None where too few rows of both classes are left to compare."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    auc: float | None
    tpr: float | None  # at a false positive rate of 1 %
    own_auc: float | None
    own_tpr: float | None


def measure(scores_NC: Floats, is_class_NC: Bools, forecasts_NC: Floats | None) -> Leak:
    """The leak of scores for one class, or the mean over several classes, each against the rest.

    Without forecasts, such as for random labels, which no forecast predicts, own is raw.
    """
    columns = range(scores_NC.shape[1])
    raw = [_one_bin(scores_NC[:, c], is_class_NC[:, c]) for c in columns]
    own = raw
    if forecasts_NC is not None:
        own = [_in_bins(scores_NC[:, c], is_class_NC[:, c], forecasts_NC[:, c]) for c in columns]
    return Leak(
        auc=_mean([auc for auc, _ in raw]),
        tpr=_mean([tpr for _, tpr in raw]),
        own_auc=_mean([auc for auc, _ in own]),
        own_tpr=_mean([tpr for _, tpr in own]),
    )


def auc_of(scores_N: Floats, is_positive_N: Bools) -> float:
    """The area under the ROC curve; NaN if there is only one class."""
    weights = np.ones((len(scores_N), 1), np.uint8)
    return float(Ranking(scores_N, is_positive_N).measure(weights)["auc"][0])


def tpr_of(scores_N: Floats, is_positive_N: Bools) -> float:
    """The share of positives above a threshold that at most 1 % of the negatives reach.

    The next negative counts as one that does, so that random scores have a rate of at most 1 %:
    above the second of 100 negatives are 2 % of such scores, above the first 1 %. Of fewer
    negatives none may reach the threshold; NaN if there are fewer than 50.
    """
    num_negative = int(np.count_nonzero(~is_positive_N))
    if num_negative < _MIN_NEGATIVES or not is_positive_N.any():
        return float("nan")
    true, false = Ranking(scores_N, is_positive_N).curve()
    allowed = true[false + 1 <= max(1.0, MAX_FPR * (num_negative + 1))]
    return float(allowed[-1] / true[-1]) if len(allowed) else 0.0


def _one_bin(scores_N: Floats, is_positive_N: Bools) -> tuple[float, float]:
    if is_positive_N.all() or not is_positive_N.any():
        return float("nan"), float("nan")
    return auc_of(scores_N, is_positive_N), tpr_of(scores_N, is_positive_N)


def _in_bins(scores_N: Floats, is_positive_N: Bools, forecast_N: Floats) -> tuple[float, float]:
    """AUC over all pairs of the same bin, and the rate with a threshold for each bin."""
    num_bins = max(1, min(_BINS, len(scores_N) // _BIN_ROWS))
    ordered, pairs, found, positives = 0.0, 0, 0.0, 0
    for rows in np.array_split(np.argsort(forecast_N, kind="stable"), num_bins):
        of_bin = is_positive_N[rows]
        num_positive = int(of_bin.sum())
        num_pairs = num_positive * (len(rows) - num_positive)
        if not num_pairs:
            continue
        auc, tpr = _one_bin(scores_N[rows], of_bin)
        ordered, pairs = ordered + auc * num_pairs, pairs + num_pairs
        if len(rows) - num_positive >= _MIN_NEGATIVES_IN_BIN:
            found, positives = found + tpr * num_positive, positives + num_positive
    return (
        ordered / pairs if pairs else float("nan"),
        found / positives if positives else float("nan"),
    )


def _mean(values: list[float]) -> float | None:
    defined = [value for value in values if not np.isnan(value)]
    return round(float(np.mean(defined)), 4) if defined else None
