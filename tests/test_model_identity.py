"""The identity of a trained model: a name that all parties agree on."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import nn

import celu
from celu.errors import ProtocolError
from celu.events import ignore
from celu.model_identity import (
    ModelIdentity,
    digest_weights,
    read_guest_body,
    read_host_body,
    weights_of,
)
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links, run_together
from federation import Federation, federation

DIGEST = "ab" * 32


def identity(**changes: Any) -> ModelIdentity:
    fields = {
        "run": "0" * 32,
        "round": 7,
        "weights": {"guest": DIGEST, "host": "cd" * 32},
        "trained_at": "2026-01-02T03:04:05Z",
    }
    return ModelIdentity(**fields | changes)


def train(fed: Federation) -> dict[str, celu.Result]:
    pairs = {name: memory_links("guest", name) for name in fed.hosts}
    programs: dict[str, Any] = {
        name: host_session(name, host, fed.job, pairs[name][1], ignore)
        for name, host in fed.hosts.items()
    }
    links = {name: pair[0] for name, pair in pairs.items()}
    programs["guest"] = guest_session("guest", fed.guest, fed.job, links, ignore)
    return run_together(programs, [end for pair in pairs.values() for end in pair])


def test_all_parties_of_a_run_name_the_same_model() -> None:
    fed = federation(hosts={"first": 4, "second": 6})
    results = train(fed)
    (name,) = {result.model.name for result in results.values()}
    assert len(name) == 16
    model = results["guest"].model
    assert model.round == results["guest"].rounds
    for host, party in fed.hosts.items():
        assert model.weights[host] == digest_weights(weights_of({"bottom": party.bottom}))
    modules = {"bottom": fed.guest.bottom, "top": fed.guest.top}
    assert model.weights["guest"] == digest_weights(weights_of(modules))


def test_two_runs_with_the_same_weights_have_different_names() -> None:
    first, second = (train(federation())["guest"].model for _ in range(2))
    assert first.weights == second.weights
    assert first.name != second.name


def test_the_guest_has_the_mean_z_of_each_host() -> None:
    fed = federation(hosts={"first": 4, "second": 6})
    results = train(fed)
    for host, party in fed.hosts.items():
        party.bottom.eval()
        with torch.no_grad():
            expected = party.bottom(**party.train.inputs).double().mean(0)
        got = torch.tensor(results["guest"].mean_z[host], dtype=torch.float64)
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)
        assert results[host].mean_z == {}


def test_the_name_depends_on_run_round_and_weights_alone() -> None:
    name = identity().name
    assert identity(trained_at="2027-01-02T03:04:05Z").name == name
    for changes in (
        {"run": "1" * 32},
        {"round": 8},
        {"weights": {"guest": DIGEST, "host": "ce" * 32}},
        {"weights": {"guest": DIGEST}},
    ):
        assert identity(**changes).name != name


def test_a_digest_covers_names_types_shapes_and_values() -> None:
    tensors = {"a": torch.tensor([1.0, 2.0]), "b": torch.zeros(0)}
    text = hashlib.sha256()
    text.update(b"a torch.float32 [2]\n" + torch.tensor([1.0, 2.0]).numpy().tobytes())
    text.update(b"b torch.float32 [0]\n")
    digest = digest_weights(tensors)
    assert digest == text.hexdigest()
    others = [
        {"c": tensors["a"], "b": tensors["b"]},
        {"a": tensors["a"].double(), "b": tensors["b"]},
        {"a": tensors["a"].reshape(1, 2), "b": tensors["b"]},
        {"a": tensors["a"] + 1, "b": tensors["b"]},
        {"a": tensors["a"].bfloat16(), "b": tensors["b"]},
    ]
    assert len({digest, *map(digest_weights, others)}) == 6


def test_a_digest_does_not_depend_on_the_layout_in_memory() -> None:
    layer = nn.Linear(3, 2)
    transposed = weights_of({"x": layer})
    transposed["x.weight"] = transposed["x.weight"].t().contiguous().t()
    assert digest_weights(transposed) == digest_weights(weights_of({"x": layer}))


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"weights": DIGEST},
        {"weights": DIGEST.upper(), "mean_z": [0.0, 1.0]},
        {"weights": DIGEST, "mean_z": [0.0]},
        {"weights": DIGEST, "mean_z": [0.0, float("nan")]},
        {"weights": DIGEST, "mean_z": [0.0, True]},
        {"weights": [DIGEST], "mean_z": [0.0, 1.0]},
    ],
)
def test_a_host_must_send_a_digest_and_a_finite_mean_z(body: dict[str, Any] | None) -> None:
    with pytest.raises(ProtocolError, match="MODEL of host: expected a digest"):
        read_host_body("host", body, 2)


def test_a_host_refuses_an_identity_that_contradicts_what_it_knows() -> None:
    sent = identity().model_dump()
    known = {"run": "0" * 32, "round": 7, "parties": ["guest", "host"], "weights of guest": DIGEST}
    assert read_guest_body("guest", sent, known) == identity()
    for field, value in (
        ("run", "1" * 32),
        ("round", 8),
        ("parties", ["guest"]),
        ("weights of host", DIGEST),
    ):
        with pytest.raises(ProtocolError, match=f"MODEL of guest: {field}"):
            read_guest_body("guest", sent, known | {field: value})
    for broken in ({}, sent | {"round": -1}, sent | {"more": 1}, sent | {"weights": {}}):
        with pytest.raises(ProtocolError, match="expected a model's identity"):
            read_guest_body("guest", broken, known)
