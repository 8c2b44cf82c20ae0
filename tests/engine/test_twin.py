"""The twin: labels are randomized once, what it refuses, and the metrics that decide."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import celu
from celu.data.batch_loader import BatchLoader
from celu.data.dataset import Batch
from celu.data.order import BatchOrder
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.setup import RunSetup, RunTerms
from celu.engine.twin_metrics import corrected_auc
from celu.errors import ConfigError
from celu.metrics.measure import compute
from celu.privacy.randomized_response import RandomizedResponse
from celu.privacy.secret_key import SecretKey
from celu.transport.message import Kind
from federation import BATCH, ROWS, Federation, federation
from twins import KEY, messages_to_hosts, randomized_labels, twin_federation, with_labels

STANDING_STILL = celu.Optimizer(name="sgd", lr=1e-30)
EPOCH = ROWS // BATCH


def derivatives_by_row(fed: Federation) -> dict[int, list[Tensor]]:
    """dZ of each row, one for each time that it was exchanged."""
    order, found = BatchOrder(fed.job.seed, ROWS, BATCH), {}
    for message in messages_to_hosts(fed)[0]:
        if message.kind is Kind.DERIVATIVE and message.tensor is not None:
            rows = order.rows(message.round)
            for row, dz in zip(rows.tolist(), message.tensor, strict=True):
                found.setdefault(row, []).append(dz)
    return found


def test_a_row_has_the_same_randomized_label_in_every_epoch_and_run() -> None:
    assert rows_with_other_derivatives() == 0


def test_labels_that_are_randomized_again_for_each_batch_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch_of = BatchLoader.batch

    def batch(self: BatchLoader, round_: int) -> Batch:
        batch = batch_of(self, round_)
        if batch.inputs:  # not the twin's
            return batch
        assert batch.labels is not None
        again = celu.Dataset({}, batch.labels)
        response, key = RandomizedResponse(3.0, 2), SecretKey(b"a key of round %3d" % round_)
        return replace(batch, labels=response.randomize(again, "", batch.labels, key, ""))

    monkeypatch.setattr(BatchLoader, "batch", batch)
    assert rows_with_other_derivatives() > 10


def rows_with_other_derivatives() -> int:
    """How many rows have other dZ in another epoch or run, of a model that stays as it is."""
    fed = twin_federation(rounds=3 * EPOCH, optimizer=STANDING_STILL, method=celu.Method(R=1))
    found = derivatives_by_row(copy.deepcopy(fed))
    again = derivatives_by_row(copy.deepcopy(fed))
    assert len(found) == ROWS and all(len(exposures) == 3 for exposures in found.values())
    return sum(
        # The other rows of a batch change sums in the last bits.
        not all(
            torch.allclose(dz, exposures[0], rtol=1e-3, atol=1e-6)
            for dz in (*exposures, *again[row])
        )
        for row, exposures in found.items()
    )


def test_a_host_is_sent_derivatives_of_the_randomized_labels_and_not_of_the_true_ones() -> None:
    fed = twin_federation(rounds=EPOCH, optimizer=STANDING_STILL, method=celu.Method(R=1))
    plain = copy.deepcopy(fed)
    plain.job = plain.job.model_copy(update={"privacy": celu.Job(hosts={}, rounds=1).privacy})
    private, true = (derivatives_by_row(f) for f in (copy.deepcopy(fed), plain))
    labels = fed.guest.train.labels
    assert labels is not None
    randomized = randomized_labels(fed, "train")
    for row in range(ROWS):
        agrees = bool((private[row][0] * true[row][0]).sum() > 0)
        assert agrees == bool(randomized[row] == labels[row])
    assert 0.15 < float((randomized != labels).double().mean()) < 0.4


def test_the_guests_own_models_learn_from_the_true_labels_and_are_what_is_evaluated() -> None:
    rounds = {"rounds": 20 * EPOCH, "evaluation": {"every": 20 * EPOCH, "metric": "auc"}}
    private = twin_federation(epsilon=0.05, **rounds)  # nearly nothing is left of the labels
    result = celu.simulate(private.job, private.guest, private.hosts)
    assert result.metrics["auc"] > 0.85
    model = celu.models_of(result, private.job, private.guest, private.hosts)
    assert set(model) == {"guest", "host"}
    assert result.own_weights != result.model.weights["guest"]


@pytest.mark.parametrize("is_residual", [False, True], ids=["one prediction", "members"])
def test_with_a_large_epsilon_it_learns_as_without_privacy(is_residual: bool) -> None:
    job: dict[str, Any] = {"rounds": 10, "method": celu.Method(R=1)}
    job |= {"is_residual": is_residual, "dropout": 0.0}
    plain, private = federation(**job), twin_federation(epsilon=20.0, **job)
    celu.simulate(plain.job, plain.guest, plain.hosts)
    celu.simulate(private.job, private.guest, private.hosts)
    weights = private.weights()
    for name, tensor in plain.weights().items():
        assert torch.allclose(tensor, weights[name], atol=1e-4)


def test_weights_of_rows_and_classes_do_not_change_what_a_host_receives() -> None:
    fed = twin_federation(rounds=8)
    weighted = with_labels(copy.deepcopy(fed), lambda y: y, class_weights="balanced")
    train = weighted.guest.train
    rows = celu.Dataset(train.inputs, train.labels, train.sizes, weights=torch.rand(ROWS) + 0.1)
    object.__setattr__(weighted.guest, "train", rows)
    one, two = (messages_to_hosts(f)[0] for f in (copy.deepcopy(fed), weighted))
    for a, b in zip(one, two, strict=True):
        assert a.tensor is None or (b.tensor is not None and torch.allclose(a.tensor, b.tensor))


def test_the_twin_adds_no_update_to_a_round() -> None:
    for R, own in {1: 0, 2: 0, 3: 1, 5: 3}.items():
        plain, private = (
            GuestTrainer("guest", fed.guest, fed.job) for fed in (federation(), twin_federation())
        )
        assert plain.num_local_steps(R) == R - 1
        assert private.num_local_steps(R) == own


def test_a_guest_alone_has_no_twin_and_needs_no_key() -> None:
    fed = twin_federation(key=None, hosts={})
    assert GuestTrainer("guest", fed.guest, fed.job).twin is None
    celu.simulate(fed.job, fed.guest, {})


def own_loss(output: Tensor, labels: Tensor) -> Tensor:
    return (output.reshape(-1) - labels).square()


@celu.metric(higher_is_better=True)
def mine(scores: Any, labels: Any) -> float:
    return 1.0


def refused(fed: Federation, pattern: str) -> None:
    with pytest.raises(ConfigError, match=pattern):
        celu.simulate(fed.job, fed.guest, fed.hosts)


def with_loss(fed: Federation, loss: Any, **more: Any) -> Federation:
    guest = fed.guest
    given = {"train": guest.train, "test": guest.test, "bottom": guest.bottom, "label_key": KEY}
    fed.guest = celu.Guest(top=guest.top, loss=loss, **given, **more)
    return fed


def test_what_would_reveal_labels_is_refused_with_the_reason() -> None:
    privacy = {"privacy": {"label_epsilon": 1.0}}
    regression = with_loss(federation(loss="regression", **privacy), "regression")
    refused(regression, "privacy.label_epsilon: expected labels that are classes, got a loss of nu")
    undeclared = with_loss(federation(**privacy), own_loss)
    refused(undeclared, "privacy.label_epsilon: expected a loss that declares its classes")
    refused(twin_federation(key=None), "label_key: expected a key")
    evaluation = {"every": 5, "metric": "ks", "target": 0.5}
    refused(twin_federation(evaluation=evaluation), "evaluation.metric: expected one of loss, .*ks")
    fed = twin_federation(evaluation={"every": 5, "metric": "mine", "target": 0.5})
    refused(
        with_loss(fed, "binary", metrics=mine), "evaluation.metric: expected one of .* got mine"
    )


def test_weights_that_learned_from_true_labels_are_no_start_for_a_twin() -> None:
    fed = twin_federation()
    with pytest.raises(ConfigError, match=r"start: expected none with privacy\.label_epsilon"):
        RunSetup.of("guest", fed.guest, fed.job, RunTerms(start="0" * 16), None)


def test_a_loss_of_your_own_that_declares_its_classes_is_allowed() -> None:
    loss = celu.Loss(own_loss, output="binary", labels="binary")
    fed = with_loss(twin_federation(rounds=4), loss)
    assert celu.simulate(fed.job, fed.guest, fed.hosts).rounds == 4


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.001, 21.0])
def test_an_epsilon_without_meaning_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="label_epsilon: "):
        celu.Job(hosts={}, rounds=1, privacy={"label_epsilon": epsilon})


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_corrected_auc_is_that_of_the_true_labels(share: float) -> None:
    random, num_rows, q = np.random.default_rng(1), 200_000, 1 / (1 + math.e)
    true = random.random(num_rows) < share
    scores = random.normal(size=num_rows) + true
    noisy = true ^ (random.random(num_rows) < q)
    expected = compute("binary", scores, true.astype(float), ["auc"])["auc"]
    found = compute("binary", scores, noisy.astype(float), ["auc"])["auc"]
    assert found < expected - 0.05
    assert corrected_auc(found, float(noisy.mean()), q, num_rows) == pytest.approx(
        expected, abs=0.02
    )


def test_a_checkpoint_without_label_privacy_has_nothing_of_a_twin() -> None:
    fed = federation()
    metadata, tensors = GuestTrainer("guest", fed.guest, fed.job).state_dict()
    assert metadata.twin is None
    assert not any(name.startswith("twin.") for name in tensors)
    private = twin_federation()
    metadata, tensors = GuestTrainer("guest", private.guest, private.job).state_dict()
    assert metadata.twin is not None
    assert metadata.twin.key == SecretKey(KEY).fingerprint
    assert replace(SecretKey(KEY)).secret.hex() not in metadata.model_dump_json()
