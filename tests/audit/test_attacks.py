"""Attacks find labels in dZ without a defence and behind a broken one, and nothing in noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from celu.audit import direct
from celu.audit.leak import measure
from celu.audit.learner import linear, network

ROWS, EXPOSURES, WIDTH = 4000, 5, 16
KNOWN = np.arange(ROWS) % 2 == 0


def derivatives(
    rows: int = ROWS, noise: float = 0.0, *, memoised: bool = False, width: int = WIDTH
) -> tuple[Any, Any, Any]:
    """dZ of a log loss, [rows, exposures, width], as (p - y) times the weights of each exposure.

    The noise is Marvell's: most of it is along the direction that separates the classes. It is
    drawn for each exposure, or once a row.
    """
    random = np.random.default_rng(3)
    logits = random.normal(size=rows) - 1
    is_positive = random.random(rows) < 1 / (1 + np.exp(-logits))
    weights = random.normal(size=width)
    parts = []
    drawn = random.normal(size=(rows, width))
    for number in range(EXPOSURES):
        forecast = 1 / (1 + np.exp(-logits - 0.3 * random.normal(size=rows)))
        moved = weights * (1 + 0.1 * number) + 0.2 * random.normal(size=width)
        exact = (forecast - is_positive)[:, None] * moved
        if not memoised:
            drawn = random.normal(size=(rows, width))
        along = drawn[:, :1] * weights / np.linalg.norm(weights)
        parts.append(exact + noise * np.linalg.norm(weights) * (along + 0.3 * drawn))
    dz = (np.stack(parts, axis=1) / 4096).astype(np.float32)
    return dz, is_positive, 1 / (1 + np.exp(-logits))


def auc(scores: Any, is_positive: Any) -> float:
    found = measure(scores[~KNOWN], is_positive[~KNOWN, None], None).auc
    assert found is not None
    return found


def learned(x: Any, is_positive: Any) -> tuple[float, float]:
    labels = is_positive.astype(np.float64)
    return (
        auc(linear(x, labels, KNOWN, 2), is_positive),
        auc(network(x, labels, KNOWN, 2, seed=1), is_positive),
    )


@pytest.mark.parametrize("attack", [direct.cosine, direct.spectral])
def test_a_direction_separates_labels_without_a_defence(attack: Any) -> None:
    dz, is_positive, _ = derivatives()
    assert auc(attack(dz[:, 0], is_positive, KNOWN)[:, None], is_positive) >= 0.99


def test_the_norm_of_a_rare_class_is_larger() -> None:
    x = np.array([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0], [0.0, 1.0]])
    is_positive, known = np.array([True, False, True, False]), np.ones(4, np.bool_)
    assert direct.norm(x, is_positive, known) == pytest.approx([5, 0.5, 10, 1])
    assert direct.norm(x, ~is_positive, known) == pytest.approx([-5, -0.5, -10, -1])


def test_the_attacks_that_learn_find_labels_without_a_defence() -> None:
    dz, is_positive, _ = derivatives()
    assert min(learned(dz[:, 0], is_positive)) >= 0.99


def test_random_dz_reveals_nothing() -> None:
    _, is_positive, _ = derivatives()
    dz = np.random.default_rng(5).normal(size=(ROWS, WIDTH)).astype(np.float32)
    direct_scores = [
        f(dz, is_positive, KNOWN) for f in (direct.norm, direct.cosine, direct.spectral)
    ]
    found = [auc(scores[:, None], is_positive) for scores in direct_scores]
    assert all(0.45 < value < 0.55 for value in [*found, *learned(dz, is_positive)])


def test_averaging_removes_noise_that_is_drawn_for_each_exposure() -> None:
    dz, is_positive, _ = derivatives(noise=4.0)
    one, averaged = learned(dz[:, 0], is_positive), learned(dz.mean(axis=1), is_positive)
    assert one[1] + 0.05 < averaged[1]


def test_a_network_sees_through_noise_that_is_drawn_once_a_row() -> None:
    dz, is_positive, _ = derivatives(noise=4.0, memoised=True)
    assert learned(dz[:, 0], is_positive)[1] < 0.75
    assert learned(dz.reshape(ROWS, -1), is_positive)[1] >= 0.85


def test_a_network_finds_what_no_line_separates() -> None:
    random = np.random.default_rng(2)
    x = random.normal(size=(ROWS, 4)).astype(np.float32)
    is_positive = x[:, 0] * x[:, 1] > 0
    by_line, by_network = learned(x, is_positive)
    assert by_line < 0.6
    assert by_network > 0.95


def test_constant_columns_and_rows_of_zeros_do_no_harm() -> None:
    dz, is_positive, _ = derivatives()
    x = dz[:, 0].copy()
    x[:, 3] = 1.0
    x[5] = 0.0
    scored = [f(x, is_positive, KNOWN) for f in (direct.norm, direct.cosine, direct.spectral)]
    assert all(np.isfinite(scores).all() for scores in scored)
    assert min(learned(x, is_positive)) >= 0.98


def test_several_classes_have_a_score_each() -> None:
    random = np.random.default_rng(2)
    labels = random.integers(3, size=ROWS)
    x = (np.eye(3)[labels] + 0.1 * random.normal(size=(ROWS, 3))).astype(np.float32)
    for scores in (linear(x, labels, KNOWN, 3), network(x, labels, KNOWN, 3, seed=1)):
        assert scores.shape == (ROWS, 3)
        assert (scores.argmax(axis=1) == labels).mean() > 0.99


def test_an_attack_leaves_the_random_numbers_of_torch_alone() -> None:
    import torch

    dz, is_positive, _ = derivatives(rows=400)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    network(dz[:, 0], is_positive.astype(np.float64), np.arange(400) % 2 == 0, 2, seed=1)
    assert torch.equal(torch.rand(3), expected)
