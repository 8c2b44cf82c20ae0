"""A metric that is NaN ends the run or is reported as such; it never counts as the best."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import celu
from celu.engine.auto import AutoPlan
from celu.engine.evaluation import Evaluator
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.outcome import Outcome, Timings
from celu.engine.schedule import Schedule
from celu.errors import CheckpointError, DataError, NonFiniteError
from celu.events import Warned
from celu.models.losses import LOSSES
from federation import federation


def nan_while_scoring(self: GuestTrainer, *arguments: Any) -> Any:
    scores = SCORE(self, *arguments)
    return scores._replace(output=scores.output * math.nan, losses_B=scores.losses_B * math.nan)


SCORE = GuestTrainer.score


@pytest.mark.parametrize(
    ("loss", "metric"),
    [("binary", "loss"), ("binary", "auc"), ("regression", "rmse"), ("multiclass", "accuracy")],
)
@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"R": 1}, "evaluation after round 5 is NaN or Inf"),
        ("auto", "NaN or Inf within 14 rounds, in training or an evaluation, with the gentlest"),
    ],
    ids=["fixed", "auto"],
)
def test_nan_in_an_evaluation_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, loss: str, metric: Any, method: Any, message: str
) -> None:
    monkeypatch.setattr(GuestTrainer, "score", nan_while_scoring)
    fed = federation(loss=loss, evaluation=celu.Evaluation(every=5, metric=metric), method=method)
    events: list[celu.Event] = []
    with pytest.raises(NonFiniteError, match=message) as caught:
        celu.simulate(fed.job, fed.guest, fed.hosts, callbacks=[events.append])
    assert caught.value.exit_code == 10
    assert "evaluation" not in {event.event for event in events}


def test_a_metric_that_alone_is_nan_ends_the_run() -> None:
    fed = federation(loss="regression", evaluation=celu.Evaluation(every=5, metric="own"))
    own = celu.Metric(lambda scores, labels: math.nan, higher_is_better=True, name="own")
    guest = replace(fed.guest, metrics=[own])
    with pytest.raises(
        NonFiniteError, match=r"the metric 'own', .* returned NaN or Inf in .* round 5"
    ):
        celu.simulate(fed.job, guest, fed.hosts)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_any_reported_metric_that_is_nan_or_inf_ends_the_run(value: float) -> None:
    fed = federation(loss="regression", evaluation=celu.Evaluation(every=5, metric="loss"))
    own = celu.Metric(lambda scores, labels: value, higher_is_better=True, name="own")
    events: list[celu.Event] = []
    with pytest.raises(
        NonFiniteError, match="the metric 'own', a function of your own, returned"
    ) as caught:
        celu.simulate(
            fed.job, replace(fed.guest, metrics=["mae", own]), fed.hosts, callbacks=[events.append]
        )
    assert caught.value.exit_code == 10
    assert "evaluation" not in {event.event for event in events}


@pytest.mark.parametrize(("loss", "undefined"), [("regression", "r2"), ("multiclass", "macro_auc")])
def test_a_metric_that_the_labels_do_not_define_is_left_out_with_a_warning(
    loss: str, undefined: str
) -> None:
    fed = federation(loss=loss, evaluation=celu.Evaluation(every=5, metric="loss"))
    rows = fed.guest.test
    same = celu.Dataset(rows.inputs, torch.ones(rows.num_rows), rows.sizes)
    events: list[celu.Event] = []
    guest = replace(fed.guest, test=same, metrics=None)
    result = celu.simulate(fed.job, guest, fed.hosts, callbacks=[events.append])
    assert result.rounds == fed.job.rounds
    for evaluation in result.evaluations:
        assert undefined not in evaluation and {"loss", "mae"} & set(evaluation)
    (warning,) = [event.message for event in events if isinstance(event, Warned)]
    assert f"do not define {undefined}, so evaluations leave it out" in warning


def scores_are_nan(self: GuestTrainer, *arguments: Any) -> Any:
    scores = SCORE(self, *arguments)
    return scores._replace(output=scores.output * math.nan)


def test_an_auc_that_is_nan_with_a_finite_loss_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GuestTrainer, "score", scores_are_nan)
    fed = federation(evaluation=celu.Evaluation(every=5))
    with pytest.raises(NonFiniteError, match="the auc of the evaluation after round 5") as caught:
        celu.simulate(fed.job, fed.guest, fed.hosts)
    assert caught.value.exit_code == 10


def test_test_rows_of_one_class_are_refused_before_training() -> None:
    fed = federation(evaluation=celu.Evaluation(every=5, rows=3))
    rows = fed.guest.test
    ones = celu.Dataset(rows.inputs, torch.ones(rows.num_rows), rows.sizes)
    with pytest.raises(DataError, match="expected both classes, got one in all 192 rows"):
        replace(fed.guest, test=ones)
    last = torch.ones(rows.num_rows)
    last[-1] = 0  # not among the rows that are evaluated
    guest = replace(fed.guest, test=celu.Dataset(rows.inputs, last, rows.sizes))
    with pytest.raises(DataError, match="expected both classes, got one in all 3 rows"):
        celu.simulate(fed.job, guest, fed.hosts)
    r2 = federation(loss="regression", evaluation=celu.Evaluation(every=5, metric="r2"))
    same = celu.Dataset(rows.inputs, torch.ones(rows.num_rows), rows.sizes)
    with pytest.raises(DataError, match="expected several labels for r2, got one in all 192 rows"):
        celu.simulate(r2.job, replace(r2.guest, test=same), r2.hosts)


@pytest.mark.parametrize("metric", ["loss", "rmse", "accuracy"])
def test_nan_is_not_the_best_objective(metric: Any) -> None:
    evaluator = Evaluator(LOSSES["binary"], celu.Evaluation(metric=metric))
    assert not evaluator.objective({"loss": math.nan, metric: math.nan}) >= -1e9


def test_the_objective_is_higher_for_better_models() -> None:
    metrics = {"loss": 0.5, "auc": 0.8}
    by_loss, by_auc, by_rmse = (
        Evaluator(LOSSES["binary"], celu.Evaluation(metric=metric)).objective(metrics)
        for metric in ("loss", "auc", "rmse")
    )
    assert (by_loss, by_auc) == (-0.5, 0.8)
    assert by_rmse == -0.5  # the loss, where the guest's loss does not report the metric


@pytest.mark.parametrize("field", ["losses", "scores"])
@pytest.mark.parametrize("where", ["outcome", "segment in progress"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_checkpoint_with_nan_or_inf_as_a_score_or_loss_is_refused(
    field: str, where: str, value: float
) -> None:
    job = federation(rounds=20, method="auto").job
    schedule = Schedule(20, rounds_per_epoch=6, evaluate_every=50, test_rows=32, part_rows=32)
    timings = Timings(4, 1.0, 0.0, 0.0, 0, 1.0, 100)
    plan = AutoPlan(job, schedule)
    plan.next(Outcome(plan.first().segment, timings, (timings,)))
    state = plan.state_dict(4)
    AutoPlan(job, schedule).load_state_dict(state, 0)
    (state["outcomes"][0] if where == "outcome" else state)[field] = [value]
    with pytest.raises(CheckpointError, match="no valid outcomes"):
        AutoPlan(job, schedule).load_state_dict(state, 0)
