"""Requests become scores: of any model, from any hosts, together or alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from celu.errors import AskRefused, DataError, NonFiniteError, RequestError
from celu.serving.batching import Job, Outcome
from celu.serving.few_rows import to_batch
from celu.serving.inference_protocol import Answer, InferRequest
from celu.transport.ask import Ask, Refusal
from serving.guests import COMMON, SLOT, federated, host_session, served_model
from serving.test_encoding import GOOD

KINDS: dict[str, dict[str, Any]] = {
    "binary": {},
    "multiclass": {"loss": "multiclass"},
    "regression": {"loss": "regression"},
    "a guest without features": {"guest_has_features": False},
    "two hosts": {"hosts": {"b": 6, "a": 4}},
    "no host": {"hosts": {}},
    "residual networks": {"is_residual": True},
    "residual networks, two hosts": {"is_residual": True, "hosts": {"b": 6, "a": 4}},
}


def job(ids: list[str], values: dict[str, Any] | None = None) -> Job:
    return Job(InferRequest(ids, values), time.monotonic() + 600.0, lambda outcome: None)


def answer(outcome: Outcome) -> Answer:
    assert isinstance(outcome, Answer), outcome
    return outcome


@pytest.mark.parametrize("kind", KINDS)
def test_rows_alone_and_together_have_the_same_scores(kind: str, tmp_path: Path) -> None:
    found = federated(tmp_path, **KINDS[kind])
    alone = [answer(found.inference.serve([job([row])])[0]) for row in COMMON[:9]]
    jobs = [job(COMMON[:4]), job(COMMON[4:5]), job(COMMON[5:9])]
    together = [answer(outcome) for outcome in found.inference.serve(jobs)]
    scores = np.concatenate([np.array(one.scores) for one in together])
    assert scores == pytest.approx(
        np.concatenate([np.array(one.scores) for one in alone]), abs=1e-6
    )
    assert [len(one.missing) for one in together] == [4, 1, 4]
    assert not any(any(one.missing) for one in together)
    assert scores.shape == ((9, 3) if kind == "multiclass" else (9,))
    if kind == "multiclass":
        assert scores.sum(axis=1) == pytest.approx(1.0)


def test_one_ask_carries_the_rows_of_all_requests(tmp_path: Path) -> None:
    found = federated(tmp_path)
    found.inference.serve([job(COMMON[:2]), job(COMMON[2:5])])
    assert [len(rows) for rows in found.hosts["host"].asked] == [5]


def test_each_host_that_gives_no_z_is_named_for_its_rows(tmp_path: Path) -> None:
    found = federated(tmp_path, hosts={"b": 6, "a": 4})
    both = answer(found.inference.serve([job(COMMON[:2])])[0])
    found.hosts["a"].is_down = True
    without = answer(found.inference.serve([job([*COMMON[:2], "guest-own-1"])])[0])
    assert without.missing == [["a"], ["a"], ["b", "a"]]
    assert without.scores[:2] != pytest.approx(both.scores, abs=1e-6)
    mean = found.served.model.fallback_z(3)
    rows, _, _ = found.rows.locate([*COMMON[:2], "guest-own-1"])
    inputs = found.served.rows.take(rows)
    assert inputs is not None
    found.hosts["b"].is_down = True
    alone = answer(found.inference.serve([job([*COMMON[:2], "guest-own-1"])])[0])
    expected = found.served.model.scores(to_batch(inputs), [mean["b"], mean["a"]])
    assert alone.scores == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_bad_request_fails_alone(tmp_path: Path) -> None:
    found = federated(tmp_path)
    outcomes = found.inference.serve(
        [
            job(COMMON[:2]),
            job([COMMON[0], "unknown"]),
            job(["x"], {"n0": [1.0]}),
            job(["x"], {"absent": [1.0]}),
            job(COMMON[3:4]),
        ]
    )
    assert isinstance(outcomes[1], RequestError) and outcomes[1].status == 404
    assert "unknown" not in str(outcomes[1])
    assert isinstance(outcomes[2], DataError)
    assert isinstance(outcomes[3], RequestError) and outcomes[3].status == 400
    expected = [answer(found.inference.serve([job(rows)])[0]) for rows in (COMMON[:2], COMMON[3:4])]
    for outcome, alone in zip((outcomes[0], outcomes[4]), expected, strict=True):
        assert answer(outcome).scores == pytest.approx(alone.scores, abs=1e-6)


def test_without_a_fallback_only_requests_with_missing_rows_are_refused(tmp_path: Path) -> None:
    found = federated(tmp_path, fallback="refuse")
    full, partly = found.inference.serve([job(COMMON[:2]), job([COMMON[0], "guest-own-2"])])
    assert isinstance(full, Answer)
    assert isinstance(partly, RequestError) and partly.status == 503
    assert "host" in str(partly)


def test_a_score_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    found = federated(tmp_path, loss="regression")
    with torch.no_grad():
        for parameter in found.served.model.top.parameters():  # type: ignore[union-attr]
            parameter.fill_(3e38)
    assert isinstance(found.inference.serve([job(COMMON[:1])])[0], NonFiniteError)


def ask(*rows: int, slot: int = SLOT) -> Ask:
    return Ask(0, slot, rows, time.monotonic() + 600.0)


def test_a_host_refuses_rows_slots_and_limits_by_code(tmp_path: Path) -> None:
    session = federated(tmp_path).hosts["host"].session
    assert session.answer(ask(0, 59)).numel() == 2 * 6 * 4
    for refused, reason in (
        (ask(60), Refusal.UNKNOWN_ROW),
        (ask(0, 2**47), Refusal.UNKNOWN_ROW),
        (ask(0, slot=SLOT + 1), Refusal.UNKNOWN_MODEL),
    ):
        with pytest.raises(AskRefused) as got:
            session.answer(refused)
        assert got.value.reason == reason


class Service:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.ids: list[str] = []

    def lookup(self, ids: list[str]) -> list[Any]:
        self.ids += ids
        return self.rows[: len(ids)]


def test_a_host_uses_its_feature_service_for_the_ids_of_the_rows(tmp_path: Path) -> None:
    found = federated(tmp_path)
    host, store = found.hosts["host"].session, found.stores["host"]
    served = served_model(found.models["host"], store)
    raw = dict.fromkeys(store.schema.numbers, 0.5) | dict.fromkeys(store.schema.categories, "a")
    service = Service([raw, raw])
    session = host_session(served, host.rows, tmp_path / "lookup", service)
    one = session.answer(ask(7, 8)).reshape(2, -1)
    assert torch.equal(one[0], one[1])  # both rows have the same features now
    row = host.rows.rows(np.array([7, 8]))
    assert service.ids == [host.rows.ids()[int(n)].as_py() for n in row]
    said: list[str] = []
    session.say = said.append
    for bad in ([None, raw], [raw, GOOD]):
        service.rows = bad
        with pytest.raises(AskRefused) as got:
            session.answer(ask(7, 8))
        assert got.value.reason == Refusal.UNKNOWN_ROW
    assert len(said) == 2 and "serve.lookup" in said[0]
