"""With validation rows, a run delivers the weights of its best evaluation at all parties."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import celu
from celu.engine.held_out import HeldOutMetrics, HeldOutScores
from celu.engine.plan import FixedPlan
from celu.events import Evaluated, ModelTested
from celu.metrics.names import HIGHER_IS_BETTER
from celu.model_identity import digest_weights, weights_of
from federation import Federation, assert_same_bits, federation, train_in_memory, with_validation
from slow.engine.test_resume import Noisy

OVERFITS = celu.Optimizer(name="adagrad", lr=0.3)


def overfitting(
    *, depth: int = 1, metric: Any = "loss", every: int = 2, patience: int | None = None, **job: Any
) -> Federation:
    """A run whose validation rows are best in the middle; its host has running means."""
    fed = federation(
        **{"rounds": 30, **job},
        optimizer=OVERFITS,
        method=celu.Method(R=3, W=3, depth=depth),
        evaluation=celu.Evaluation(every=every, metric=metric, patience=patience),
    )
    host = fed.hosts["host"]
    bottom = Noisy(host.bottom, 6)
    fed.hosts["host"] = celu.Host(bottom=bottom, train=host.train, test=host.test)
    return with_validation(fed)


def train(
    fed: Federation, host_callbacks: Mapping[str, Any] | None = None
) -> tuple[celu.Result, list[celu.Event]]:
    events: list[celu.Event] = []
    result = celu.simulate(fed.job, fed.guest, fed.hosts, callbacks=[events.append])
    return result, events


def predicted(fed: Federation, result: celu.Result, part: Any) -> dict[str, float]:
    """The metrics of `celu.predict` with the delivered parts."""
    models = celu.models_of(result, fed.job, fed.guest, fed.hosts)
    hosts = {name: (models[name], host.held_out(part)) for name, host in fed.hosts.items()}
    rows = fed.guest.held_out(part)
    scores = torch.tensor(celu.predict(models[fed.job.guest], rows, hosts).scores)
    assert rows.labels is not None
    losses = torch.nn.functional.binary_cross_entropy(scores.double(), rows.labels.double())
    own = HeldOutMetrics(fed.guest.loss, ["auc"], "auc")
    held_out = HeldOutScores("binary", scores.numpy(), rows.labels.double().numpy())
    return {"loss": float(losses), "auc": own.compute(held_out)["auc"]}


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("metric", ["loss", "auc"])
def test_predictions_with_the_delivered_parts_have_the_best_validation_metric(
    depth: int, metric: str
) -> None:
    fed = overfitting(depth=depth, metric=metric)
    result, _ = train(fed)
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    best = max(result.evaluations, key=lambda e: sign * e[metric])
    assert result.best_round == best["round"] == result.model.round < result.rounds == 30
    assert predicted(fed, result, "validation")[metric] == pytest.approx(best[metric], rel=1e-6)
    assert predicted(fed, result, "test")[metric] == pytest.approx(result.metrics[metric], rel=1e-6)


def test_the_delivered_weights_are_bit_for_bit_those_of_a_run_that_ends_there() -> None:
    # At the end of a run nothing is in flight, so the bits are equal with one round in flight.
    fed = overfitting()
    result, _ = train(trained := copy.deepcopy(fed))
    assert result.best_round is not None and result.best_round < 30
    without = with_validation_dropped(overfitting(rounds=result.best_round))
    assert_same_bits(trained.weights(), train_in_memory(without))


def with_validation_dropped(fed: Federation) -> Federation:
    guest = celu.Guest(
        top=fed.guest.top,
        bottom=fed.guest.bottom,
        loss=fed.guest.loss,
        train=fed.guest.train,
        test=fed.guest.test,
    )
    hosts = {
        name: celu.Host(bottom=host.bottom, train=host.train, test=host.test)
        for name, host in fed.hosts.items()
    }
    return Federation(fed.job, guest, hosts)


def test_the_model_is_named_after_the_delivered_weights_of_all_parties() -> None:
    fed = overfitting(depth=4)
    result, _ = train(fed)
    host = {"bottom": fed.hosts["host"].bottom}
    guest = {"bottom": fed.guest.bottom, "top": fed.guest.top}
    assert result.model.weights == {
        "host": digest_weights(weights_of(host)),
        "guest": digest_weights(weights_of(guest)),
    }


def test_test_rows_are_scored_once_at_the_end() -> None:
    fed = overfitting()
    result, events = train(fed)
    evaluated = [event for event in events if isinstance(event, Evaluated)]
    assert [event.rows for event in evaluated] == ["validation"] * 15
    assert [event.round for event in evaluated if event.best][-1] == result.best_round
    (tested,) = [event for event in events if isinstance(event, ModelTested)]
    assert tested is events[-1] and tested.round == result.best_round
    assert tested.metrics == result.test == result.metrics


def test_without_validation_rows_the_last_weights_are_delivered_and_test_rows_evaluated() -> None:
    fed = with_validation_dropped(overfitting())
    result, events = train(fed)
    assert result.best_round is None and result.test == {} and result.model.round == 30
    assert not [event for event in events if isinstance(event, ModelTested)]
    assert {event.rows for event in events if isinstance(event, Evaluated)} == {"test"}


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("patience", [1, 3])
def test_training_ends_after_patience_evaluations_without_improvement(
    depth: int, patience: int
) -> None:
    whole, _ = train(overfitting(depth=depth))
    fed = overfitting(depth=depth, patience=patience)
    result, _ = train(fed)
    losses = [evaluation["loss"] for evaluation in whole.evaluations]
    ends = next(
        i
        for i in range(len(losses))
        if i >= patience and i - losses.index(min(losses[: i + 1])) == patience
    )
    assert result.rounds == 2 * (ends + 1) < 30
    assert [e["loss"] for e in result.evaluations] == losses[: ends + 1]
    assert predicted(fed, result, "validation")["loss"] == pytest.approx(
        min(losses[: ends + 1]), rel=1e-6
    )


def test_patience_without_validation_rows_is_refused() -> None:
    fed = with_validation_dropped(overfitting(patience=2))
    with pytest.raises(celu.errors.ConfigError, match=r"evaluation.patience: .* split.validation"):
        celu.simulate(fed.job, fed.guest, fed.hosts)


def test_validation_rows_at_one_party_only_are_refused() -> None:
    fed = overfitting()
    fed.hosts = with_validation_dropped(fed).hosts
    with pytest.raises(celu.errors.ContractMismatch, match=r"validation_rows: .* 50"):
        celu.simulate(fed.job, fed.guest, fed.hosts)


def test_validation_rows_of_one_class_have_no_auc_and_are_refused_before_training() -> None:
    fed = overfitting(metric="auc", patience=1)
    assert fed.guest.validation is not None and fed.guest.validation.labels is not None
    fed.guest.validation.labels.fill_(1.0)
    with pytest.raises(celu.errors.DataError, match="validation rows: expected both classes"):
        train(fed)


def test_a_limit_of_rows_applies_to_validation_rows_and_all_test_rows_are_scored() -> None:
    fed = overfitting()
    job = fed.job.model_copy(update={"evaluation": celu.Evaluation(every=2, rows=20)})
    result, _ = train(Federation(job, fed.guest, fed.hosts))
    assert predicted(fed, result, "test")["loss"] == pytest.approx(result.test["loss"], rel=1e-6)
    everything = predicted(fed, result, "validation")["loss"]
    best = {e["round"]: e["loss"] for e in result.evaluations}[result.best_round or 0]
    assert everything != pytest.approx(best, rel=1e-6)


def test_scores_reach_the_plan_from_validation_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(FixedPlan, "observe_score", lambda self, score: seen.append(score))
    fed = overfitting()
    train(with_validation_dropped(fed))
    assert seen == []
    result, _ = train(fed)
    assert seen == [-evaluation["loss"] for evaluation in result.evaluations]
