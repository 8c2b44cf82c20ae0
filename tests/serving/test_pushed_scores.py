"""Scores that are computed in advance: those of Z, for the model and the Z that are current."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from celu.serving.batching import Job
from celu.serving.host_link import RowKeys
from celu.serving.inference import Inference
from celu.serving.inference_protocol import Answer, InferRequest
from celu.serving.pushed_scores import PushedScores
from serving.guests import COMMON, OWN, DirectHost, Federated, federated

WAIT_S = 600.0


@dataclass
class Pushed:
    """The Z of a host in this process, of all aligned rows; None if it is not complete."""

    name: str
    z_ND: Any

    def pushed_z(self, model: str) -> Any:
        return self.z_ND


def push(host: DirectHost, parties: Federated) -> Pushed:
    numbers = list(range(parties.rows.num_aligned))
    keys = RowKeys(numbers, [b""] * len(numbers))
    z_ND = host.start(parties.served.name, keys, time.monotonic() + WAIT_S).get().z_ND
    host.asked.clear()
    return Pushed(host.name, z_ND)


def answer(inference: Inference, ids: list[str], values: Any = None) -> Answer:
    job = Job(InferRequest(ids, values), time.monotonic() + WAIT_S, lambda outcome: None)
    (outcome,) = inference.serve([job])
    assert isinstance(outcome, Answer)
    return outcome


@pytest.fixture(params=["binary", "multiclass"])
def parties(request: pytest.FixtureRequest, tmp_path: Path) -> Federated:
    return federated(tmp_path, loss=request.param)


def with_known(parties: Federated, known: PushedScores) -> Inference:
    hosts = list(parties.hosts.values())
    return Inference(lambda: parties.served, parties.rows, hosts, "mean", known)


def test_rows_by_id_are_looked_up_and_others_computed(parties: Federated, tmp_path: Path) -> None:
    pushed = [push(host, parties) for host in parties.hosts.values()]
    expected = answer(parties.inference, COMMON)
    asked = [host.asked for host in parties.hosts.values()]
    known = PushedScores(lambda: parties.served, parties.rows, pushed, tmp_path / "serve")
    inference = with_known(parties, known)
    known.look()
    for one in asked:
        one.clear()
    got = answer(inference, COMMON)
    assert not any(asked)
    assert got.model == expected.model and got.missing == expected.missing
    np.testing.assert_allclose(got.scores, expected.scores, rtol=0, atol=1e-5)
    mixed = [COMMON[0], f"guest-{OWN[0]}"]  # the second is not aligned
    assert answer(inference, mixed) == answer(parties.inference, mixed)
    assert any(asked)
    assert not list((tmp_path / "serve").iterdir())  # their file has no name


def test_scores_belong_to_one_model_and_one_push(parties: Federated, tmp_path: Path) -> None:
    current: Any = parties.served
    pushed = [push(host, parties) for host in parties.hosts.values()]
    z_ND, pushed[0].z_ND = pushed[0].z_ND, None
    known = PushedScores(lambda: current, parties.rows, pushed, tmp_path)
    known.look()
    assert known.find(parties.served, [0]) is None  # not complete
    pushed[0].z_ND = z_ND
    known.look()
    before = known.find(parties.served, [0])
    assert before is not None
    pushed[0].z_ND = z_ND + 1.0
    known.look()
    after = known.find(parties.served, [0])
    assert after is not None and after != before
    current = type(parties.served)(parties.served.model, parties.served.rows, None)
    assert known.find(current, [0]) is None  # until it looks
    known.look()
    assert known.find(current, [0]) == after and known.find(parties.served, [0]) is None


def test_a_push_wakes_the_thread(parties: Federated, tmp_path: Path) -> None:
    pushed = [push(host, parties) for host in parties.hosts.values()]
    with PushedScores(lambda: parties.served, parties.rows, pushed, tmp_path) as known:
        known.wake()
        give_up_at = time.monotonic() + WAIT_S
        while known.find(parties.served, [0]) is None:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
    assert not known._thread.is_alive()


def test_an_error_is_said_once_and_requests_compute_their_scores(
    parties: Federated, tmp_path: Path
) -> None:
    pushed = [push(host, parties) for host in parties.hosts.values()]
    (tmp_path / "file").touch()
    said: list[str] = []
    folder = tmp_path / "file" / "serve"  # cannot be made
    known = PushedScores(lambda: parties.served, parties.rows, pushed, folder, said.append)
    with known:
        for _ in range(2):
            known.wake()
            give_up_at = time.monotonic() + WAIT_S
            while known._wake.is_set() or not said:
                assert time.monotonic() < give_up_at
                time.sleep(0.01)
    assert len(said) == 1 and said[0].startswith("scores are not computed in advance")
    inference = with_known(parties, known)
    assert answer(inference, COMMON[:2]) == answer(parties.inference, COMMON[:2])
