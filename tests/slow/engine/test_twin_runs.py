"""With label privacy, a host sees nothing of the true labels, in whole runs of every method."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import celu
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import InlineWriter
from celu.engine.guest_loss import GuestLoss
from celu.errors import CheckpointError, NonFiniteError
from celu.privacy.randomized_response import RandomizedResponse
from celu.transport.message import Message
from checkpoint.disks import QuickDisk
from federation import Federation, assert_same_bits
from noises import GAUSSIAN
from twins import (
    as_bytes,
    messages_to_hosts,
    on_the_wire,
    randomized_labels,
    twin_federation,
    with_labels,
)

AUC = {"every": 4, "metric": "auc"}
CASES: dict[str, dict[str, Any]] = {
    "vanilla": {"method": celu.Method(R=1)},
    "celu": {"method": celu.Method(W=5, R=5, weighting="cosine")},
    "compensated": {"method": celu.Method(W=3, R=3)},
    "three rounds in flight": {"method": celu.Method(R=3, depth=3)},
    "4 bits": {"method": celu.Method(R=3, depth=2), "codec": "4bit"},
    "after the update": {"method": celu.Method(R=3, local_step_order="after-update")},
    "two hosts": {"hosts": {"one": 6, "two": 3}},
    "labels only": {"guest_has_features": False},
    "multi-class": {"loss": "multiclass"},
    "FedBCD": {"method": celu.Method(W=1, R=3, weighting="none")},
    "members": {"is_residual": True, "method": celu.Method(R=3)},
    "noise on Z": {"privacy": {"label_epsilon": 1.0, "z_noise": GAUSSIAN}},
    "two slices": {"slices": 2, "method": celu.Method(R=3)},
    "auto": {"method": "auto", "rounds": 90, "evaluation": {**AUC, "every": 10}},
    "auto with validation": {
        "method": "auto", "rounds": 90, "evaluation": AUC, "validation": True,
    },
    "target": {"evaluation": {**AUC, "target": 0.9}, "rounds": 60, "epsilon": 2.0},
    "target of an accuracy": {
        "evaluation": {"every": 3, "metric": "accuracy", "target": 0.7}, "rounds": 60,
    },
    "patience": {
        "evaluation": {**AUC, "every": 2, "patience": 2}, "rounds": 60, "validation": True,
    },
    "best weights by the loss": {
        "evaluation": {"every": 3, "metric": "loss"}, "rounds": 24, "validation": True,
    },
}  # fmt: skip


def fixed_labels(monkeypatch: pytest.MonkeyPatch, fed: Federation) -> None:
    """Whatever the true labels are, the randomized ones are those of this federation."""
    parts: list[Any] = ["train", "test"]
    parts += ["validation"] if fed.guest.validation is not None else []
    found = {part: randomized_labels(fed, part) for part in parts}

    def fixed(self: RandomizedResponse, rows: Any, part: str, *given: Any) -> Tensor:
        return found[part]

    monkeypatch.setattr(RandomizedResponse, "randomize", fixed)


def turned_around(labels: Tensor) -> Tensor:
    return labels.flip(0)


def mostly_one_class(labels: Tensor) -> Tensor:
    classes, other = torch.unique(labels), torch.zeros_like(labels)
    rare = torch.arange(0, len(labels), 8)
    other[rare] = classes[torch.arange(len(rare)) % len(classes)]
    return other


@pytest.mark.parametrize("change", [turned_around, mostly_one_class])
@pytest.mark.parametrize("case", CASES)
def test_other_true_labels_with_the_same_randomized_ones_give_hosts_the_same_bytes(
    case: str, change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dict(CASES[case])
    slices = settings.pop("slices", 1)
    fed = twin_federation(**settings)
    other = with_labels(copy.deepcopy(fed), change)
    fed = with_labels(copy.deepcopy(fed), lambda labels: labels)  # tensors of the same layout
    fixed_labels(monkeypatch, fed)
    before = fed.weights()
    one, result = messages_to_hosts(fed, slices=slices)
    two, other_result = messages_to_hosts(other, slices=slices)
    assert [as_bytes(message) for message in one] == [as_bytes(message) for message in two]
    assert result.rounds == other_result.rounds
    if "target" in case or "patience" in case:
        assert result.rounds < fed.job.rounds  # type: ignore[operator]
    # The guest's own models did learn from the true labels.
    own = [name for name in before if name.startswith(("top.", "bottom."))]
    assert any(not torch.equal(fed.weights()[name], other.weights()[name]) for name in own)
    assert result.evaluations != other_result.evaluations


def test_without_label_privacy_other_labels_give_a_host_other_bytes() -> None:
    fed = twin_federation(privacy={})
    other = with_labels(copy.deepcopy(fed), lambda labels: labels.flip(0))
    (one, _), (two, _) = messages_to_hosts(fed), messages_to_hosts(other)
    assert [as_bytes(message) for message in one] != [as_bytes(message) for message in two]


def test_nan_in_the_own_model_is_not_seen_by_a_host_and_is_reported_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fed = twin_federation(method=celu.Method(R=3), checkpoint={"every": 3})
    whole, bad = copy.deepcopy(fed), copy.deepcopy(fed)
    expected, _ = messages_to_hosts(whole)
    losses = GuestLoss.weighted
    monkeypatch.setattr(GuestLoss, "weighted", lambda *given: losses(*given) * float("nan"))
    sent: list[Message] = []
    with pytest.raises(NonFiniteError, match="the model contains NaN or Inf, although the run"):
        messages_to_hosts(bad, sent)
    assert [as_bytes(message) for message in sent] == [as_bytes(message) for message in expected]
    with pytest.raises(NonFiniteError, match="although the run was completed"):
        train(fed, tmp_path)  # which takes checkpoints


@celu.metric(higher_is_better=True)
def failing(scores: Any, labels: Any) -> float:
    if labels[0] == 1:  # as a true label decides
        raise ValueError("no such label")
    return 0.5


def test_a_metric_of_ones_own_that_fails_does_not_end_the_run() -> None:
    messages, ends = [], []
    for first in (0.0, 1.0):
        fed = twin_federation(rounds=8)
        fed.guest.test.labels[0] = first  # type: ignore[index]
        object.__setattr__(fed.guest, "metrics", ("auc", failing))
        events: list[celu.Event] = []
        result = celu.simulate(
            copy.deepcopy(fed.job), fed.guest, fed.hosts, callbacks=[events.append]
        )
        messages.append([e.fields["message"] for e in events if e.event == "warning"])
        ends.append((result.rounds, str(result.metrics["failing"])))
    assert messages[0] == [] and len(messages[1]) == 1
    assert "the metric 'failing' failed" in messages[1][0]
    assert ends == [(8, "0.5"), (8, "nan")]


def test_a_metric_of_ones_own_that_is_nan_is_a_warning_and_does_not_end_the_run() -> None:
    fed = twin_federation(rounds=8)
    own = celu.Metric(lambda scores, labels: math.nan, higher_is_better=True, name="own")
    events: list[celu.Event] = []
    result = celu.simulate(
        fed.job, replace(fed.guest, metrics=[own]), fed.hosts, callbacks=[events.append]
    )
    (warning,) = [e.fields["message"] for e in events if e.event == "warning"]
    assert "the metric 'own' is NaN or Inf; it is recorded as undefined" in warning
    assert result.rounds == 8


def train(fed: Federation, folder: Path, killed: int | None = None) -> celu.Result:
    stores = {
        name: Checkpoints(folder / name, QuickDisk(), InlineWriter())
        for name in (fed.job.guest, *fed.hosts)
    }

    def stop(event: celu.Event) -> None:
        if killed is not None and event.event == "checkpoint" and event.fields["round"] >= killed:
            raise RuntimeError("killed")

    return celu.simulate(fed.job, fed.guest, fed.hosts, checkpoints=stores, callbacks=[stop])


RESUMED: dict[str, dict[str, Any]] = {
    "celu": {"method": celu.Method(R=4, W=4, depth=2)},
    "4 bits and adam": {"codec": "4bit", "optimizer": celu.Optimizer(name="adam", lr=0.01)},
    "multi-class": {"loss": "multiclass", "method": celu.Method(R=3)},
    "best": {"validation": True, "evaluation": {"every": 3, "metric": "auc"}},
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_that_is_killed_and_resumed_has_the_same_bits(case: str, tmp_path: Path) -> None:
    fed = twin_federation(checkpoint={"every": 3}, rounds=14, **RESUMED[case])
    whole, first, second = (copy.deepcopy(fed) for _ in range(3))
    result = train(whole, tmp_path / "whole")
    with pytest.raises(celu.CeluError):
        train(first, tmp_path / "killed", killed=6)
    resumed = train(second, tmp_path / "killed")
    assert_same_bits(second.weights(), whole.weights())
    assert resumed.model.weights == result.model.weights  # of the twin, at the guest
    assert resumed.own_weights == result.own_weights


def test_another_key_is_refused_when_a_run_resumes(tmp_path: Path) -> None:
    fed = twin_federation(checkpoint={"every": 3})
    with pytest.raises(celu.CeluError):
        train(copy.deepcopy(fed), tmp_path, killed=6)
    other = with_labels(fed, lambda labels: labels, b"another key of labels")
    with pytest.raises(CheckpointError, match="label_key: expected the key that the run started"):
        train(other, tmp_path)


def test_other_labels_are_refused_when_a_run_resumes(tmp_path: Path) -> None:
    fed = twin_federation(checkpoint={"every": 3})
    with pytest.raises(celu.CeluError):
        train(copy.deepcopy(fed), tmp_path, killed=6)
    other = with_labels(fed, lambda labels: labels.flip(0))
    with pytest.raises(CheckpointError, match="the labels: expected the rows and labels that"):
        train(other, tmp_path)


def test_no_file_and_no_message_contains_the_key(tmp_path: Path) -> None:
    key = tmp_path / "secret" / "label.key"
    key.parent.mkdir()
    fed = twin_federation(key=key, checkpoint={"every": 3})
    events: list[str] = []
    stores = {n: Checkpoints(tmp_path / n, QuickDisk(), InlineWriter()) for n in ("guest", "host")}
    result = celu.simulate(
        fed.job,
        fed.guest,
        fed.hosts,
        checkpoints=stores,
        callbacks=[lambda event: events.append(str(event.fields))],
    )
    digits = key.read_text().strip()
    secret = bytes.fromhex(digits)
    files = [
        path for n in ("guest", "host") for path in (tmp_path / n).rglob("*") if path.is_file()
    ]
    assert files
    for content in [path.read_bytes() for path in files]:
        assert secret not in content and digits.encode() not in content
    shown = [*events, repr(result), repr(fed.guest)]
    assert not any(digits in text or repr(secret)[2:-1] in text for text in shown)
    sent = on_the_wire(messages_to_hosts(twin_federation(key=key))[0])
    assert len(sent) > 10_000 and secret not in sent and digits.encode() not in sent
