"""Weights of rows and classes: in the training loss, in dZ, and in the held-out loss."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

import celu
from celu.config.class_weights import parse_class_weights
from celu.data.batch_loader import BatchLoader
from celu.data.order import BatchOrder
from celu.engine.row_weights import RowWeights
from celu.errors import ConfigError, DataError
from federation import (
    ROWS,
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    with_weights,
)

CPU = torch.device("cpu")
SGD = celu.Optimizer(name="sgd", lr=0.1)
COUNTS = torch.arange(ROWS) % 4  # 0 to 3, 1.5 on average


def rows(labels: Any, weights: Any = None) -> celu.Dataset:
    weights = None if weights is None else torch.as_tensor(weights)
    return celu.Dataset({}, torch.tensor(labels), weights=weights)


def weights_of(train: celu.Dataset, class_weights: Any = None) -> Tensor:
    found = RowWeights(train, class_weights, CPU).of(train.take(slice(None)))
    assert found is not None
    return found


def repeated(fed: Federation) -> Federation:
    """The same rows, each as often as its count."""
    at = torch.repeat_interleave(torch.arange(ROWS), COUNTS)

    def repeat(data: celu.Dataset) -> celu.Dataset:
        labels = None if data.labels is None else data.labels[at]
        return celu.Dataset({n: t[at] for n, t in data.inputs.items()}, labels, data.sizes)

    guest = celu.Guest(
        top=fed.guest.top,
        loss=fed.guest.loss,
        train=repeat(fed.guest.train),
        test=fed.guest.test,
        bottom=fed.guest.bottom,
    )
    hosts = {
        name: celu.Host(bottom=host.bottom, train=repeat(host.train), test=host.test)
        for name, host in fed.hosts.items()
    }
    job = fed.job.model_copy(update={"batch_size": len(at)})
    return Federation(job, guest, hosts)


@pytest.mark.parametrize("loss", ["binary", "multiclass", "regression"])
def test_a_row_with_weight_k_counts_as_k_rows_do(loss: str) -> None:
    method = celu.Method(R={"guest": 2, "host": 1}, W=2)
    fed = federation(loss=loss, rounds=5, batch_size=ROWS, optimizer=SGD, method=method)
    weighted = train_in_memory(with_weights(fed, COUNTS))
    reference = train_in_memory(repeated(fed))
    plain = train_in_memory(fed)
    assert not all(torch.allclose(plain[name], w, atol=1e-3) for name, w in weighted.items())
    for name, weight in weighted.items():
        torch.testing.assert_close(weight, reference[name], rtol=1e-3, atol=1e-5)


def test_weights_of_one_change_no_bit() -> None:
    method = celu.Method(R=3, W=3, depth=3)  # stale derivatives are corrected
    fed = federation(method=method)
    for same in (
        with_weights(fed, torch.ones(ROWS)),
        with_weights(fed, torch.full((ROWS,), 2.0)),  # the mean is divided out
        with_weights(fed, None, class_weights={0: 4.0, 1: 4.0}),
    ):
        assert_same_bits(train_in_memory(same), train_in_memory(fed))


def test_weights_have_the_mean_1_over_all_training_rows() -> None:
    torch.testing.assert_close(
        weights_of(rows([0, 1, 1, 1], [2.0, 0.0, 1.0, 1.0])), torch.tensor([2.0, 0.0, 1.0, 1.0])
    )
    both = weights_of(rows([0, 1, 1, 1], [2.0, 0.0, 1.0, 1.0]), {"1": 3.0})
    torch.testing.assert_close(both, torch.tensor([2.0, 0.0, 3.0, 3.0]) / 2)


def test_balanced_class_weights_are_scikit_learns() -> None:
    labels = np.array([0, 0, 0, 0, 0, 2, 2, 7])
    classes = np.unique(labels)
    expected = compute_class_weight("balanced", classes=classes, y=labels)
    of_rows = expected[np.searchsorted(classes, labels)]
    found = weights_of(rows(labels.tolist()), "balanced")
    np.testing.assert_allclose(found.numpy(), of_rows, rtol=1e-6)


def test_balanced_classes_count_the_same_in_total_with_weights_of_rows_too() -> None:
    labels, weights = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1.0, 2.0, 3.0, 5.0, 0.0])
    found = weights_of(rows(labels.tolist(), weights), "balanced")
    totals = torch.bincount(labels, found)
    torch.testing.assert_close(totals, torch.full_like(totals, 2.5))


@pytest.mark.parametrize("shuffle", ["rows", "blocks"])
def test_weights_stay_with_their_rows(shuffle: Any) -> None:
    numbers = torch.arange(ROWS).float()
    data = celu.Dataset({"x": numbers[:, None]}, numbers, weights=numbers)
    settings = celu.Order(shuffle=shuffle, block_rows=8, window_blocks=4)
    loader = BatchLoader(data, BatchOrder(1, ROWS, 24, settings), CPU)
    for round_ in range(10):
        batch = loader.batch(round_)
        assert batch.weights is not None and batch.weights.equal(batch.inputs["x"][:, 0])


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_curvature_of_a_weighted_log_loss_is_by_fishers_identity(outputs: int) -> None:
    torch.manual_seed(1)
    loss = celu.LOSSES["binary" if outputs == 1 else "multiclass"]
    output, labels = torch.randn(8, outputs), torch.arange(8) % max(2, outputs)
    weights = torch.rand(8) + 0.1
    leaf = output.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss.per_instance(leaf, labels).sum(), leaf)
    squares = slope.square().sum(dim=1)
    expected = float((weights * squares).sum() / (weights**2 * squares).sum())
    assert loss.curvature(output, labels, weights) == pytest.approx(expected)
    # The factor of a row is 1 + B dz.D / w; if all rows have the same weight, it is exact.
    assert loss.curvature(output, labels, torch.full((8,), 4.0)) == pytest.approx(1 / 4)
    assert loss.curvature(output, labels, torch.ones(8)) == 1.0
    assert loss.curvature(output, labels, torch.zeros(8)) == 0.0


def test_the_curvature_of_another_weighted_loss_is_that_of_the_weighted_losses() -> None:
    torch.manual_seed(1)
    output, labels, weights = torch.randn(8, 1), torch.randn(8), torch.rand(8) + 0.1
    residuals = output[:, 0] - labels
    expected = float((2 * weights).sum() / (2 * weights * residuals).square().sum())
    found = celu.LOSSES["regression"].curvature(output, labels, weights)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["binary", "multiclass", "regression"])
def test_held_out_metrics_count_rows_by_their_weights(loss: str) -> None:
    fed = with_weights(federation(rounds=5, loss=loss), None)  # with all metrics
    found, plain = (
        celu.simulate(one.job, one.guest, one.hosts).metrics
        for one in map(copy.deepcopy, (with_weights(fed, None, test=COUNTS), fed))
    )
    assert found.keys() == plain.keys()
    assert all(found[name] != plain[name] for name in found)
    at = torch.repeat_interleave(torch.arange(ROWS), COUNTS)

    def repeat(data: celu.Dataset) -> celu.Dataset:
        labels = None if data.labels is None else data.labels[at]
        return celu.Dataset({n: t[at] for n, t in data.inputs.items()}, labels, data.sizes)

    more = copy.deepcopy(fed)
    guest = celu.Guest(
        top=more.guest.top,
        loss=more.guest.loss,
        train=more.guest.train,
        test=repeat(more.guest.test),
        bottom=more.guest.bottom,
    )
    host = more.hosts["host"]
    hosts = {"host": celu.Host(bottom=host.bottom, train=host.train, test=repeat(host.test))}
    # Copies of a row may differ in the last bit of their scores, and rank apart.
    assert celu.simulate(more.job, guest, hosts).metrics == pytest.approx(found, rel=1e-3)


def test_held_out_metrics_do_not_count_rows_by_their_class() -> None:
    fed = with_weights(federation(rounds=5), None)
    one, other = (
        celu.simulate(weighted.job, weighted.guest, weighted.hosts).metrics
        for weighted in map(
            copy.deepcopy,
            (fed, with_weights(fed, None, class_weights={0: 3.0, 1: 3.0})),
        )
    )
    assert one == other


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.tensor([1.0, -1.0]), "0 or more, and finite, got others in 1 rows"),
        (torch.tensor([1.0, torch.nan]), "got others in 1 rows"),
        (torch.ones(2, 1), r"one value per row, got \[2, 1\]"),
        (torch.ones(3), "the same number of rows everywhere"),
    ],
)
def test_weights_that_are_none_are_refused(weights: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rows([0, 1], weights)


def test_rows_that_all_have_the_weight_0_are_refused() -> None:
    fed = federation()
    for zero in (
        with_weights(fed, torch.zeros(ROWS)),
        with_weights(fed, None, test=torch.zeros(ROWS)),
    ):
        with pytest.raises(DataError, match="weights: expected some above 0"):
            celu.simulate(zero.job, zero.guest, zero.hosts)


def test_weights_at_a_host_are_refused() -> None:
    fed = federation()
    host = fed.hosts["host"]
    train = celu.Dataset(host.train.inputs, None, host.train.sizes, weights=torch.ones(ROWS))
    fed.hosts["host"] = celu.Host(bottom=host.bottom, train=train, test=host.test)
    with pytest.raises(DataError, match="host: expected weights of rows at the guest only"):
        celu.simulate(fed.job, fed.guest, fed.hosts)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("even", "expected \"balanced\" or weights by class, got 'even'"),
        ({}, 'expected "balanced" or weights by class'),
        ({0: 0.0}, "expected weights above 0, got 0.0"),
        ({0: "2"}, "expected weights above 0, got '2'"),
        ({0: float("inf")}, "expected weights above 0, got inf"),
    ],
)
def test_class_weights_that_are_none_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"class_weights: {message}"):
        with_weights(federation(), None, class_weights=given)


def test_classes_of_labels_that_are_true_or_false_are_named_by_these() -> None:
    data = celu.Dataset({}, np.array([False, True, False, True]))
    expected = weights_of(data, {"1": 5.0})
    for given in ({True: 5.0}, {np.True_: 5.0, False: 1.0}):
        torch.testing.assert_close(weights_of(data, parse_class_weights(given)), expected)
    text = celu.Dataset({}, np.array(["False", "True", "False", "True"]))
    torch.testing.assert_close(weights_of(text, {"True": 5.0}), expected)


def test_classes_of_text_are_named_by_their_text() -> None:
    labels = np.array(["no", "yes", "no", "yes"])
    data = celu.Dataset({}, labels)
    torch.testing.assert_close(
        weights_of(data, {"yes": 3.0}), torch.tensor([1.0, 3.0, 1.0, 3.0]) / 2
    )
    with pytest.raises(DataError, match=r"classes of the training labels \(no, yes\), got 1"):
        weights_of(data, {"1": 3.0})


def test_weights_of_unknown_classes_and_of_numbers_are_refused() -> None:
    with pytest.raises(DataError, match=r"classes of the training labels \(0, 1\), got 7"):
        weights_of(rows([0, 1, 1]), {"7": 2.0})
    with pytest.raises(ConfigError, match="class_weights: expected labels that are classes"):
        celu.Guest(
            top=torch.nn.Linear(2, 1),
            loss="regression",
            train=rows([0.5, 1.5, 2.5]),
            test=rows([0.5, 1.5]),
            class_weights="balanced",
        )
    with pytest.raises(DataError, match="at most 10,000 classes, got 20,000"):
        weights_of(celu.Dataset({}, torch.arange(20_000)), "balanced")


def test_auto_runs_with_weights() -> None:
    fed = with_weights(
        federation(rounds=20, method=celu.Method(auto=True)), COUNTS, class_weights="balanced"
    )
    assert celu.simulate(fed.job, fed.guest, fed.hosts).rounds == 20


def test_a_table_may_have_a_column_of_weights() -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1], "w": [1, 3]})
    data = celu.Dataset.from_table(frame, label="y", weight="w")
    assert data.weights is not None and data.weights.tolist() == [1.0, 3.0]
    assert data.inputs["numbers"].shape == (2, 1)
    with pytest.raises(DataError, match="column 'w' is the weight, not a feature"):
        celu.Dataset.from_table(frame, label="y", weight="w", inputs={"numbers": ["x", "w"]})
