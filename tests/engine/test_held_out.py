"""Which metrics a run reports: those that fit the loss, those that the guest chose, its own."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk
from torch import Tensor

import celu
from celu.cli.console import Console
from celu.cli.progress import RunProgress
from celu.errors import ConfigError
from celu.events import Evaluated, RoundDone, TrainingStarted
from celu.metrics.names import METRICS
from celu.models.tops import WideDeepTop
from federation import Federation, federation, with_validation


def run(fed: Federation, **guest: Any) -> tuple[celu.Result, list[celu.Event]]:
    events: list[celu.Event] = []
    changed = replace(fed.guest, **{"metrics": None, **guest})
    return celu.simulate(fed.job, changed, fed.hosts, callbacks=[events.append]), events


@celu.metric(higher_is_better=False)
def error_rate(scores: Any, labels: Any) -> float:
    return float(((scores >= 0.5) != labels).mean())


@pytest.mark.parametrize("loss", ["binary", "multiclass", "regression"])
def test_every_evaluation_reports_all_metrics_that_fit_the_loss(loss: str) -> None:
    result, events = run(federation(loss=loss))
    evaluations = [event for event in events if isinstance(event, Evaluated)]
    assert len(evaluations) == 3
    for event in evaluations:
        assert set(event.metrics) == {"loss", *METRICS[loss]}  # type: ignore[index]
    assert result.metrics == evaluations[-1].metrics
    if loss != "regression":
        assert result.metrics["log_loss"] == pytest.approx(result.metrics["loss"], rel=1e-6)


def test_the_guest_chooses_what_is_reported() -> None:
    result, events = run(federation(), metrics=["ks", error_rate])
    assert list(result.metrics) == ["loss", "ks", "error_rate"]
    started = next(event for event in events if isinstance(event, TrainingStarted))
    assert started.lower_is_better == ["error_rate"]
    everything, _ = run(federation())
    assert result.metrics["ks"] == everything.metrics["ks"]
    assert result.metrics["error_rate"] == pytest.approx(1 - everything.metrics["accuracy"])


def test_the_contracts_metric_is_reported_first_although_it_was_not_chosen() -> None:
    fed = federation(evaluation=celu.Evaluation(every=5, metric="brier"))
    result, _ = run(fed, metrics="ks")
    assert list(result.metrics) == ["loss", "brier", "ks"]


@pytest.mark.parametrize(
    ("metric", "target", "rounds"),
    [
        ("pr_auc", 0.01, 5),
        ("pr_auc", 1.01, 14),
        ("brier", 0.99, 5),  # lower is better
        ("brier", -0.01, 14),
        ("error_rate", 1.0, 5),
        ("error_rate", -0.1, 14),
    ],
)
def test_any_metric_can_be_the_target_and_its_direction_counts(
    metric: str, target: float, rounds: int
) -> None:
    fed = federation(evaluation=celu.Evaluation(every=5, metric=metric, target=target))
    result, _ = run(fed, metrics=["auc", error_rate])
    assert result.rounds == rounds


@pytest.mark.parametrize(
    ("metric", "target", "message"),
    [
        ("f1", None, r"evaluation.metric: expected one of loss, auc, .* got f1; a metric of the"),
        ("rmse", 0.1, r"evaluation.metric: expected a metric that fits .*loss \(loss, auc, .*rmse"),
    ],
)
def test_a_contract_with_a_metric_that_the_guest_lacks_is_refused(
    metric: str, target: float | None, message: str
) -> None:
    fed = federation(evaluation=celu.Evaluation(every=5, metric=metric, target=target))
    with pytest.raises(ConfigError, match=message):
        run(fed)


def test_a_chosen_metric_that_does_not_fit_the_loss_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"metrics: expected .* \(auc, .*brier\).* got rmse, r2"):
        run(federation(), metrics=["rmse", "auc", "r2"])


def focal(output: Tensor, labels: Tensor) -> Tensor:
    losses_B = F.binary_cross_entropy_with_logits(output.reshape(-1), labels, reduction="none")
    return (1 - (-losses_B).exp()).square() * losses_B


def test_a_users_own_loss_with_binary_labels_still_has_an_auc() -> None:
    fed = federation(evaluation=celu.Evaluation(every=5, metric="auc", target=0.1))
    result, _ = run(fed, loss=focal)
    assert set(result.metrics) == {"loss", "auc", "pr_auc", "ks"}
    assert result.rounds == 5
    again, _ = run(federation(), loss=celu.Loss(focal, output="binary"))
    assert set(again.metrics) == {"loss", *METRICS["binary"]}


def hinge(output: Tensor, labels: Tensor) -> Tensor:
    return (1 - labels * output.reshape(-1)).clamp(min=0)


def test_labels_of_minus_one_and_one_have_the_same_auc() -> None:
    fed = federation()
    labels = fed.guest.test.labels
    assert labels is not None
    signed = celu.Dataset(fed.guest.test.inputs, 2 * labels - 1, fed.guest.test.sizes)
    result, _ = run(fed, loss=hinge, train=signed, test=signed)
    assert result.metrics["auc"] > 0.8


def test_a_users_own_loss_of_numbers_and_of_classes_keeps_what_fits() -> None:
    huber, _ = run(
        federation(loss="regression"),
        loss=lambda output, labels: F.huber_loss(output.reshape(-1), labels, reduction="none"),
    )
    assert set(huber.metrics) == {"loss", "rmse", "mae", "r2"}
    margin, _ = run(
        federation(loss="multiclass", method={"R": 1, "weighting": "none"}),
        loss=lambda output, labels: F.multi_margin_loss(output, labels, reduction="none"),
    )
    assert set(margin.metrics) == {"loss", "accuracy", "macro_f1"}


def test_what_needs_a_probability_is_refused_where_the_loss_does_not_declare_its_output() -> None:
    with pytest.raises(ConfigError, match=r"got log_loss; declare celu.Loss\(..., output=...\)"):
        run(federation(), loss=focal, metrics=["log_loss"])


def test_several_numbers_for_each_row_count_alike() -> None:
    fed = federation()
    top = WideDeepTop([5, 6], 2, init_std=0.2)
    labels = torch.randn(192, 2)
    rows = celu.Dataset(fed.guest.test.inputs, labels, fed.guest.test.sizes)

    def both(output: Tensor, labels: Tensor) -> Tensor:
        return (output - labels).square().sum(dim=1)

    result, _ = run(fed, loss=both, top=top, train=rows, test=rows)
    assert result.metrics["rmse"] ** 2 == pytest.approx(result.metrics["loss"] / 2, rel=1e-5)
    assert result.scores is not None and not result.scores.has_one_per_row


def test_labels_that_the_outputs_do_not_match_leave_the_loss_alone() -> None:
    fed = federation()
    top = WideDeepTop([5, 6], 2, init_std=0.2)

    def spread(output: Tensor, labels: Tensor) -> Tensor:
        return (output[:, 0] - 3.5 * labels).square() + output[:, 1].square()

    half = celu.Dataset(fed.guest.test.inputs, torch.rand(192), fed.guest.test.sizes)
    result, _ = run(fed, loss=spread, top=top, train=half, test=half)
    assert list(result.metrics) == ["loss"]


def test_the_reported_figures_are_scikit_learns() -> None:
    fed = federation(loss="multiclass", evaluation=celu.Evaluation(every=14, metric="loss"))
    seen: dict[str, Any] = {}

    @celu.metric(higher_is_better=True)
    def spy(scores: Any, labels: Any) -> float:
        seen.update(scores=scores, labels=labels)
        return 0.0

    result, _ = run(fed, metrics=["accuracy", "macro_f1", "macro_auc", spy])
    scores, labels = seen["scores"], seen["labels"]
    assert np.allclose(scores.sum(axis=1), 1)
    top = scores.argmax(axis=1)
    assert result.metrics["macro_f1"] == pytest.approx(sk.f1_score(labels, top, average="macro"))
    expected = sk.roc_auc_score(labels, scores, multi_class="ovr")
    assert result.metrics["macro_auc"] == pytest.approx(expected)


def margin(output: Tensor, labels: Tensor) -> Tensor:
    return F.multi_margin_loss(output, labels.long(), reduction="none")


@pytest.mark.parametrize(
    ("kind", "loss", "settings", "decides"),
    [
        ("binary", focal, {"metric": "accuracy", "target": 0.1}, "whether the target is reached"),
        ("binary", focal, {"metric": "accuracy", "patience": 4}, "when training ends"),
        ("binary", focal, {"metric": "log_loss"}, "which weights are the best"),
        ("binary", celu.LOSSES["binary"], {"metric": "macro_f1", "patience": 4}, "when training"),
        ("multiclass", margin, {"metric": "macro_auc"}, "which weights are the best"),
        ("multiclass", margin, {"metric": "auc", "target": 0.9}, "whether the target is reached"),
    ],
)
def test_a_metric_that_decides_but_is_never_computed_is_refused_before_the_first_round(
    kind: str, loss: Any, settings: dict[str, Any], decides: str
) -> None:
    method = {"R": 1, "weighting": "none"}
    fed = federation(loss=kind, evaluation=celu.Evaluation(every=5, **settings), method=method)
    fed = with_validation(fed)
    events: list[celu.Event] = []
    guest = replace(fed.guest, loss=loss, metrics=None)
    message = f"evaluation.metric: expected a metric that fits .* although it decides {decides}"
    with pytest.raises(ConfigError, match=message):
        celu.simulate(fed.job, guest, fed.hosts, callbacks=[events.append])
    assert not [event for event in events if isinstance(event, RoundDone)]


def test_a_metric_that_decides_and_fits_the_output_is_kept() -> None:
    method = {"R": 1, "weighting": "none"}
    settings = celu.Evaluation(every=5, metric="macro_f1", patience=1)
    fed = with_validation(federation(loss="multiclass", evaluation=settings, method=method))
    result, events = run(fed, loss=margin)
    assert "macro_f1" in result.metrics
    assert {event.decides for event in events if isinstance(event, Evaluated)} == {None}


def test_a_metric_that_decides_nothing_may_be_one_that_is_not_computed() -> None:
    fed = federation(evaluation=celu.Evaluation(every=5, metric="macro_f1"))
    result, _ = run(fed)
    assert result.rounds == fed.job.rounds and "macro_f1" not in result.metrics


def test_the_loss_stands_in_for_the_default_metric_and_a_run_says_so() -> None:
    fed = federation(loss="regression", evaluation=celu.Evaluation(every=5))
    _, events = run(with_validation(fed))
    evaluations = [event for event in events if isinstance(event, Evaluated)]
    assert {event.decides for event in evaluations} == {"loss"}
    out = io.StringIO()
    progress = RunProgress(Console(file=out), "bank")
    for event in evaluations:
        progress.event(event)
    lines = out.getvalue().splitlines()
    assert lines[0] == "bank: the loss of validation rows decides which weights are the best"
    assert lines[1].startswith("bank: round 5 loss ") and len(lines) == 1 + len(evaluations)
