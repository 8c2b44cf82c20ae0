"""Intervals: the right width, the same for a seed, and memory that does not grow."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from celu.metrics.measure import make_measure
from celu.metrics.ranking import Values
from celu.scores.bootstrap import _poisson_table, bootstrap, interval
from scores.samples import Array, binary, regression

ROWS = 4000


def resampled(
    scores: Array, labels: Array, resamples: int = 2000, seed: int = 1
) -> dict[str, Values]:
    measure = make_measure("binary", scores, labels)
    return bootstrap([measure], len(labels), resamples, seed)[0]


def test_weights_are_poisson_distributed() -> None:
    counts = np.bincount(_poisson_table(), minlength=9) / 2**16
    expected = np.exp(-1) / np.array([1, 1, 2, 6, 24, 120, 720, 5040, 40320])
    assert np.abs(counts - expected).max() < 1e-4
    assert (counts * np.arange(9)).sum() == pytest.approx(1, abs=1e-3)


def test_the_interval_of_a_share_has_its_textbook_width() -> None:
    scores, labels = binary(ROWS)
    low, high = interval(resampled(scores, labels)["accuracy"]) or (0, 0)
    share = np.mean((scores >= 0.5) == labels)
    assert (low + high) / 2 == pytest.approx(share, abs=0.002)
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(share * (1 - share) / ROWS), rel=0.08)


def test_the_interval_of_auc_has_delongs_width() -> None:
    scores, labels = binary(ROWS)
    values = resampled(scores, labels)["auc"]
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    variance = wins.mean(axis=1).var(ddof=1) / len(positive)
    variance += wins.mean(axis=0).var(ddof=1) / len(negative)
    assert values.std() == pytest.approx(np.sqrt(variance), rel=0.08)
    low, high = interval(values) or (0, 0)
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(variance), rel=0.1)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        scores = random.normal(size=400)
        labels = scores + random.normal(size=400)
        measure = make_measure("regression", scores, labels)
        low, high = interval(bootstrap([measure], 400, 300, 1)[0]["mae"]) or (0, 0)
        held += low <= np.sqrt(2 / np.pi) <= high  # E|N(0, 1)|
    assert 180 <= held <= 198


def test_equal_seeds_give_equal_intervals_and_others_do_not() -> None:
    scores, labels = binary(500)
    first, again, other = (resampled(scores, labels, 200, seed) for seed in (1, 1, 2))
    assert np.array_equal(first["auc"], again["auc"])
    assert not np.array_equal(first["auc"], other["auc"])


def test_two_models_see_the_same_resamples() -> None:
    scores, labels = binary(ROWS)
    noise = np.random.default_rng(1).normal(0, 0.02, ROWS)
    similar = np.clip(scores + noise, 0, 1).astype(np.float32)
    measures = [make_measure("binary", one, labels) for one in (scores, similar, scores)]
    ours, theirs, same = bootstrap(measures, ROWS, 500, 1)
    assert np.array_equal(ours["auc"], same["auc"])
    assert (ours["auc"] - theirs["auc"]).std() < ours["auc"].std() / 3


@pytest.mark.parametrize(("num_defined", "has_interval"), [(100, True), (95, True), (80, False)])
def test_a_metric_that_many_resamples_leave_undefined_has_no_interval(
    num_defined: int, has_interval: bool
) -> None:
    values = np.where(np.arange(100) < num_defined, 0.5, np.nan)
    assert (interval(values) is not None) is has_interval


def test_memory_does_not_grow_with_the_resamples_and_little_with_the_rows() -> None:
    num_rows = 200_000
    scores, labels = binary(num_rows, digits=7)
    measure = make_measure("binary", scores, labels)

    def peak(resamples: int) -> int:
        tracemalloc.start()
        bootstrap([measure], num_rows, resamples, 1)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few, many = peak(16), peak(64)
    assert many < 1.5 * few
    assert few < 16 * num_rows + (24 << 20)  # the weights of 16 resamples, and a fixed amount


def test_every_resample_is_made_once() -> None:
    scores, labels = regression(3000)
    seen: list[int] = []
    measure = make_measure("regression", scores, labels)
    found = bootstrap([measure], 3000, 250, 1, seen.append)[0]
    assert seen[-1] == 250 and seen == sorted(seen)
    assert all(len(values) == len(np.unique(values)) == 250 for values in found.values())
