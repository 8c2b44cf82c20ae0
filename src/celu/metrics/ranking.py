"""Metrics of a ranking: the area under the ROC curve, average precision, and KS, with row weights.

Rows are sorted once. Then each set of weights takes one pass over the sorted rows, in chunks that
fit into the CPU's cache, so temporary memory does not grow with the number of rows. Weights of
resamples are whole numbers, so all counts are exact; a user's weights may be fractions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

# [N, R]: of each row in each of R resamples; or a user's, for R = 1.
Weights = npt.NDArray[np.uint8] | npt.NDArray[np.float64]
Values = npt.NDArray[np.float64]  # [R]
CHUNK_CELLS = 1 << 16  # rows times resamples


class Ranking:
    """Rows by descending score. Rows with equal scores (a tie) pass a threshold together."""

    def __init__(self, scores: npt.NDArray[Any], is_positive: npt.NDArray[np.bool_]) -> None:
        order = np.argsort(-scores)
        scores = scores[order]
        is_start = np.ones(len(scores), np.bool_)
        np.not_equal(scores[1:], scores[:-1], out=is_start[1:])
        # Half the memory, where the row numbers fit.
        self._order: npt.NDArray[np.integer[Any]] = order.astype(
            np.int32 if len(order) < 2**31 else np.int64
        )
        self._is_positive_row = is_positive
        self._is_positive = is_positive[order]
        self._is_start = is_start  # of a tie

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """`auc`, `pr_auc` and `ks` of each resample; NaN where a class has no weight."""
        positive_R, negative_R = self._totals(weights_NR)
        inverted_R, precision_R, ks_R = np.zeros((3, weights_NR.shape[1]))
        with np.errstate(invalid="ignore", divide="ignore"):
            true_scale_R1, false_scale_R1 = 1 / positive_R[:, None], 1 / negative_R[:, None]
            for true_RT, false_RT in self._passed(weights_NR):
                now_true_RT, now_false_RT = true_RT[:, 1:], false_RT[:, 1:]
                positive_RT = now_true_RT - true_RT[:, :-1]
                # Pairs in the wrong order; ties count half.
                pairs_RT = false_RT[:, :-1] + now_false_RT
                inverted_R += np.einsum("rt,rt->r", positive_RT, pairs_RT) / 2
                passed_RT = now_true_RT + now_false_RT
                passed_RT[passed_RT == 0] = 1  # positive_RT is 0 there, too
                precision_R += np.einsum("rt,rt->r", positive_RT, now_true_RT / passed_RT)
                gap_RT = np.abs(now_true_RT * true_scale_R1 - now_false_RT * false_scale_R1)
                np.maximum(ks_R, gap_RT.max(axis=1), out=ks_R)  # NaN stays NaN
            is_defined = (positive_R > 0) & (negative_R > 0)
            pairs_R = positive_R * negative_R
            return {
                "auc": np.where(is_defined, (pairs_R - inverted_R) / pairs_R, np.nan),
                "pr_auc": np.where(is_defined, precision_R / positive_R, np.nan),
                "ks": np.where(is_defined, ks_R, np.nan),
            }

    def curve(self, weights: Values | None = None) -> tuple[Values, Values]:
        """The weight of the positives and negatives with at least each distinct score.

        The highest is first; without `weights` [N] every row counts 1.
        """
        ends = np.flatnonzero(np.append(self._is_start[1:], True))
        ordered = np.ones(len(self._order)) if weights is None else weights[self._order]
        true = np.cumsum(ordered * self._is_positive)[ends]
        return true, np.cumsum(ordered * ~self._is_positive)[ends]

    def _totals(self, weights_NR: Weights) -> tuple[Values, Values]:
        """The weight of the positives and of the negatives."""
        positive_R, negative_R = np.zeros((2, weights_NR.shape[1]))
        dtype = np.int64 if weights_NR.dtype.kind == "u" else np.float64
        for start in range(0, len(weights_NR), CHUNK_CELLS):
            part = weights_NR[start : start + CHUNK_CELLS]
            is_positive = self._is_positive_row[start : start + CHUNK_CELLS]
            positive_R += part[is_positive].sum(axis=0, dtype=dtype)
            negative_R += part[~is_positive].sum(axis=0, dtype=dtype)
        return positive_R, negative_R

    def _passed(self, weights_NR: Weights) -> Iterator[tuple[Any, Any]]:
        """The weight of the positives and negatives that pass each distinct score as a threshold.

        Yields two arrays [R, 1 + T] for each chunk; the first column is the end of the last chunk.
        """
        size = max(1, CHUNK_CELLS // weights_NR.shape[1])
        true_R, false_R = np.zeros((2, weights_NR.shape[1]))
        dtype = np.int32 if weights_NR.dtype.kind == "u" else np.float64
        start = 0
        while start < len(self._order):
            # Up to the end of a tie; a tie that is larger than a chunk makes a larger chunk.
            stop = min(start + size, len(self._order))
            if stop < len(self._order) and not self._is_start[stop]:
                rest = self._is_start[stop:]
                stop = stop + int(rest.argmax()) if rest.any() else len(self._order)
            # `take` is several times faster than an index, and sums of integers than of floats.
            weights_BR = np.take(weights_NR, self._order[start:stop], axis=0)
            weights_RB: npt.NDArray[Any] = weights_BR.T.astype(dtype, order="C")
            all_RB = np.cumsum(weights_RB, axis=1, dtype=dtype)
            weights_RB *= self._is_positive[start:stop]
            positive_RB = np.cumsum(weights_RB, axis=1, dtype=dtype)
            ends = np.flatnonzero(np.append(self._is_start[start + 1 : stop], True))
            if len(ends) < stop - start:
                all_RB = np.take(all_RB, ends, axis=1)
                positive_RB = np.take(positive_RB, ends, axis=1)
            true_RT, false_RT = np.empty((2, len(true_R), 1 + len(ends)))
            true_RT[:, 0], false_RT[:, 0] = true_R, false_R
            np.add(positive_RB, true_R[:, None], out=true_RT[:, 1:])
            np.subtract(all_RB, positive_RB, out=false_RT[:, 1:])
            false_RT[:, 1:] += false_R[:, None]
            true_R, false_R = true_RT[:, -1], false_RT[:, -1]
            yield true_RT, false_RT
            start = stop
