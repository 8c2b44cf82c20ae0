"""Labels that a loss cannot take are refused before training; others are mapped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import celu
from celu.errors import DataError, ModelError
from celu.label_map import LabelMap
from celu.models.fit_labels import fit_label_map
from celu.models.losses import LOSSES
from federation import Federation, federation


def labelled(fed: Federation, labels: Any, loss: Any) -> celu.Guest:
    """The guest of a federation with other labels in all rows."""
    rows = fed.guest.train
    given = celu.Dataset(rows.inputs, labels, rows.sizes)
    return replace(fed.guest, train=given, test=given, loss=loss)


def as_classes(values: Any, fed: Federation) -> np.ndarray:
    """The 0 and 1 of a federation's labels, replaced by other values."""
    assert fed.guest.train.labels is not None
    return np.array(values)[fed.guest.train.labels.long().numpy()]


@pytest.mark.parametrize("values", [[1, 2], [-1.0, 1.0], ["no", "yes"], ["<=50K", ">50K"]])
def test_binary_labels_of_any_two_values_train_as_0_and_1_do(values: list[Any]) -> None:
    expected, got = federation(), federation()
    whole = celu.simulate(expected.job, expected.guest, expected.hosts)
    got.guest = labelled(got, as_classes(values, got), "binary")
    result = celu.simulate(got.job, got.guest, got.hosts)
    assert result.metrics == whole.metrics
    assert result.label_map.classes == values
    for name, weights in expected.weights().items():
        assert torch.equal(weights, got.weights()[name])


def test_the_positive_class_of_a_dataset_is_its_second() -> None:
    fed = federation()
    rows = fed.guest.train
    other = celu.Dataset(rows.inputs, rows.labels, rows.sizes, classes=[1, 0])
    guest = replace(fed.guest, train=other, test=other)
    assert rows.labels is not None
    assert guest.label_map.codes(rows.labels).equal(1 - rows.labels)


@pytest.mark.parametrize(
    ("labels", "loss", "message"),
    [
        (np.arange(192) % 95, "binary", 'expected two classes for the loss "binary", got more'),
        (np.arange(192).astype(str), "binary", 'for the loss "binary", got 192; choose the loss'),
        (np.linspace(0, 1, 192), "binary", '"regression" for a number'),
        (np.zeros(192), "binary", "expected two classes, got the same in all 192 training rows"),
        (
            np.arange(192) % 3 - 1,
            "multiclass",
            "negative numbers in 128 rows; write the classes as",
        ),
        (np.arange(192) / 2, "multiclass", "expected codes from 0 .* in 192 rows"),
        (np.arange(192) * 1000, "multiclass", "expected codes below 10,000 .* got larger ones"),
        (np.full(192, 3), "multiclass", "expected several classes, got the same in all 192"),
        (np.full(192, 7.5), "regression", "all 192 training rows have the same number"),
        (np.arange(192).astype(str), "regression", "expected numbers .* got text of 192 classes"),
        (np.full(192, np.nan), "regression", "expected finite numbers, got NaN or Inf in 192 rows"),
        (np.zeros((192, 1)), "regression", r"expected one value per row, \[192\], got \[192, 1\]"),
    ],
)
def test_labels_that_the_loss_cannot_take_are_refused(
    labels: np.ndarray, loss: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        labelled(federation(), labels, loss)


def test_text_labels_of_test_rows_get_the_codes_of_the_training_rows() -> None:
    fed = federation(loss="multiclass")
    rows = fed.guest.train
    assert rows.labels is not None
    names = np.array(["high", "low", "medium"])[rows.labels.numpy()]
    train = celu.Dataset(rows.inputs, names, rows.sizes)
    some = torch.from_numpy(np.flatnonzero(names != "high"))
    inputs = {name: tensor[some] for name, tensor in rows.inputs.items()}
    test = celu.Dataset(inputs, names[some.numpy()], rows.sizes)
    assert test.classes == ("low", "medium")
    guest = replace(fed.guest, train=train, test=test)
    assert guest.test.classes == ("high", "low", "medium")
    assert guest.test.labels is not None and guest.test.labels.equal(rows.labels[some])
    other = celu.Dataset(rows.inputs, np.char.add(names, "er"), rows.sizes)
    with pytest.raises(
        DataError, match=r"expected classes of the training rows in .* got 192 rows with"
    ):
        replace(guest, test=other)
    with pytest.raises(DataError, match="expected text in training and held-out rows"):
        replace(guest, test=rows)


def test_a_loss_of_the_users_own_takes_labels_as_they_are() -> None:
    seen: list[torch.Tensor] = []

    def own(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.append(labels)
        return output.reshape(-1) * 0 + labels

    fed = federation(rounds=1)
    fed.guest = replace(labelled(fed, np.arange(192) * 5.0, own), metrics=None)
    celu.simulate(fed.job, fed.guest, fed.hosts)
    assert {float(label) for labels in seen for label in labels} == set(range(0, 960, 5))


def test_a_number_is_scaled_for_the_loss_and_predicted_in_its_own_units() -> None:
    labels = torch.tensor([30_000.0, 50_000.0, 70_000.0, 50_000.0])
    fitted = fit_label_map(LOSSES["regression"], labels, {"test": labels}, None)
    assert fitted.mean == 50_000 and fitted.deviation == pytest.approx(14_142.1356)
    scaled = fitted.for_loss(labels)
    assert float(scaled.mean()) == 0 and float(scaled.std(correction=0)) == pytest.approx(1)
    assert fitted.in_own_units(scaled).tolist() == pytest.approx(labels.tolist())


def test_an_income_in_its_own_units_is_learned() -> None:
    # Unscaled, the same run ends with an RMSE above the deviation of the incomes.
    fed = federation(loss="regression", rounds=60, optimizer=celu.Optimizer(lr=0.1))
    assert fed.guest.train.labels is not None
    incomes = fed.guest.train.labels * 20_000 + 60_000
    fed.guest = labelled(fed, incomes, "regression")
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    deviation = float(incomes.std())
    assert result.metrics["rmse"] < 0.9 * deviation
    models = celu.models_of(result, fed.job, fed.guest, fed.hosts)
    hosts = {name: (models[name], host.test) for name, host in fed.hosts.items()}
    found = celu.predict(models[fed.job.guest], fed.guest.test, hosts)
    rmse = float(np.sqrt(np.square(found.scores - incomes.numpy()).mean()))
    assert rmse == pytest.approx(result.metrics["rmse"], rel=1e-4)
    assert abs(found.scores.mean() - 60_000) < deviation


def test_a_resumed_run_scales_as_the_run_did_before(tmp_path: Path) -> None:
    def make() -> tuple[celu.Job, celu.Guest, dict[str, celu.Host]]:
        fed = federation(loss="regression", checkpoint=celu.Checkpoint(every=4))
        return fed.job, replace(fed.guest, loss="regression"), fed.hosts

    class Stop(Exception):
        pass

    def stop(event: celu.Event) -> None:
        if getattr(event, "round", 0) >= 9:
            raise Stop

    def folders(name: str) -> dict[str, celu.Checkpoints]:
        parties = {party: tmp_path / name / party for party in ("guest", "host")}
        return {party: celu.Checkpoints(path) for party, path in parties.items()}

    job, guest, hosts = make()
    whole = celu.simulate(job, guest, hosts, checkpoints=folders("whole"))
    job, guest, hosts = make()
    with pytest.raises(celu.CeluError):
        celu.simulate(job, guest, hosts, checkpoints=folders("resumed"), callbacks=[stop])
    job, guest, hosts = make()
    object.__setattr__(guest, "label_map", LabelMap(mean=1.0, deviation=9.0))  # not what was fitted
    resumed = celu.simulate(job, guest, hosts, checkpoints=folders("resumed"))
    assert resumed.label_map == whole.label_map
    assert resumed.model.weights == whole.model.weights


@pytest.mark.parametrize(
    ("loss", "outputs", "expected"),
    [("binary", 2, r"\[32\] or \[32, 1\]"), ("multiclass", 2, r"\[32, 3\]")],
)
def test_a_top_whose_output_does_not_fit_the_labels_is_refused(
    loss: str, outputs: int, expected: str
) -> None:
    fed = federation(loss=loss)
    wrong = replace(fed.guest, top=celu.WideDeepTop([5, 6], outputs))
    before = fed.weights()
    with pytest.raises(ModelError, match=rf"must return .*{expected}, for .*{loss}.* got \[32, 2"):
        celu.simulate(fed.job, wrong, fed.hosts)
    assert all(torch.equal(weights, before[name]) for name, weights in fed.weights().items())


def test_validation_rows_of_one_class_are_refused() -> None:
    fed = federation()
    rows = fed.guest.test
    ones = celu.Dataset(rows.inputs, torch.ones(rows.num_rows), rows.sizes)
    with pytest.raises(DataError, match="validation rows: expected both classes, got one in all"):
        replace(fed.guest, validation=ones)


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([20240100, 20240101]),
        torch.tensor([2**53 - 1, 2**53]),
        torch.tensor([0.1, 0.9]),
        torch.tensor([-0.5, 2.0]),
    ],
)
def test_two_numbers_are_told_apart_in_their_own_type(values: torch.Tensor) -> None:
    labels = values[torch.tensor([0, 1, 1, 0, 1])]
    found = fit_label_map(celu.LOSSES["binary"], labels, {"test": labels}, None)
    assert found.codes(labels).tolist() == [0, 1, 1, 0, 1]
    if values.is_floating_point():  # a store names them as they are written
        written = [round(float(value), 6) for value in values]
        found = fit_label_map(celu.LOSSES["binary"], labels, {"test": labels}, written)
        assert found.classes == written
        assert found.codes(labels).tolist() == [0, 1, 1, 0, 1]


def test_codes_may_leave_a_class_without_rows() -> None:
    fed = federation(loss="multiclass")
    guest = replace(fed.guest, top=celu.WideDeepTop([5, 6], 4))
    assert celu.simulate(fed.job, guest, fed.hosts).label_map.classes == [0, 1, 2]
