"""Equal settings and seed give equal bits over every transport."""

from pathlib import Path
from typing import Any

import pytest
import torch

import celu
from federation import (
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    train_in_plain_loop,
    train_over_grpc,
)

VANILLA = celu.Method(R=1)
THREE_HOSTS = {"a": 6, "b": 3, "c": 9}
CASES: dict[str, dict[str, Any]] = {
    "one host": {},
    "three hosts of different widths": {"hosts": THREE_HOSTS},
    "a guest with labels only": {"guest_has_features": False},
    "multi-class": {"loss": "multiclass"},
    "regression": {"loss": "regression"},
    "three hosts, labels only, multi-class": {
        "hosts": THREE_HOSTS,
        "guest_has_features": False,
        "loss": "multiclass",
    },
    "members, multi-class": {
        "is_residual": True,
        "dropout": 0.0,
        "loss": "multiclass",
        "preset": "tabular",
    },
    "sgd": {"optimizer": celu.Optimizer(name="sgd", lr=0.1)},
    "adam": {"optimizer": celu.Optimizer(name="adam", lr=0.01)},
    "adagrad as in the paper": {
        "optimizer": celu.Optimizer(name="adagrad", lr=0.1, initial_accumulator=0.1)
    },
    "three hosts, one with its own rate, clipped, decayed, on a schedule": {
        "hosts": THREE_HOSTS,
        "optimizer": celu.Optimizer(
            name="adamw",
            lr=0.02,
            party_lr={"b": 0.005},
            embedding_lr=0.1,
            clip_norm=0.05,
            schedule="cosine",
            warmup_rounds=4,
        ),
    },
}


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Federation:
    return federation(method=VANILLA, **request.param)


def test_vanilla_in_memory_equals_one_process(case: Federation) -> None:
    assert_same_bits(train_in_memory(case), train_in_plain_loop(case))


def test_vanilla_over_grpc_equals_one_process(case: Federation, keys: Path) -> None:
    assert_same_bits(train_over_grpc(case, keys), train_in_plain_loop(case))


METHODS = {
    "celu": celu.Method(W=5, R=5, xi=60.0),
    "fedbcd": celu.Method(W=1, R=4, weighting="none"),
    "guest only": celu.Method(W=3, R={"guest": 4, "host": 1}),
    "host only, three rounds in flight": celu.Method(R={"guest": 1, "host": 3}, depth=3),
}


@pytest.fixture(params=METHODS.values(), ids=METHODS.keys())
def method(request: pytest.FixtureRequest) -> celu.Method:
    return request.param


def test_two_runs_with_one_seed_give_equal_bits(method: celu.Method) -> None:
    fed = federation(method=method, hosts=THREE_HOSTS)
    assert_same_bits(train_in_memory(fed), train_in_memory(fed))


def test_local_updates_over_grpc_equal_those_in_memory(method: celu.Method, keys: Path) -> None:
    fed = federation(method=method, hosts=THREE_HOSTS)
    assert_same_bits(train_over_grpc(fed, keys), train_in_memory(fed))


def test_it_does_not_matter_which_side_listens(keys: Path) -> None:
    fed = federation(method=METHODS["celu"], hosts=THREE_HOSTS)
    assert_same_bits(train_over_grpc(fed, keys, host_listens=True), train_over_grpc(fed, keys))


def test_another_seed_gives_other_weights() -> None:
    a, b = (train_in_memory(federation(method=VANILLA, seed=seed)) for seed in (1, 2))
    assert not torch.equal(a["top.layers.0.weight"], b["top.layers.0.weight"])


def test_local_steps_change_the_weights(method: celu.Method) -> None:
    vanilla = train_in_memory(federation(method=VANILLA))
    local = train_in_memory(federation(method=method))
    assert any(not torch.equal(vanilla[name], local[name]) for name in vanilla)


class WithDropout(torch.nn.Module):
    def __init__(self, tower: torch.nn.Module) -> None:
        super().__init__()
        self.tower, self.dropout = tower, torch.nn.Dropout(0.5)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.dropout(self.tower(**inputs))
        return z


def test_dropout_depends_on_seed_and_round_and_not_on_the_global_random_state() -> None:
    fed = federation(method=METHODS["celu"])
    host = fed.hosts["host"]
    fed.hosts["host"] = celu.Host(bottom=WithDropout(host.bottom), train=host.train, test=host.test)
    runs = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        runs.append(train_in_memory(fed))
    assert_same_bits(*runs)
