"""`space.toml`: names and values are checked against the contract, and applied to it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from celu.config.job import Job
from celu.config.job_toml import job_toml
from celu.config.space import Range, Space, Values, read_space
from celu.errors import ConfigError

JOB = Job(rounds=100, hosts={"weather": 64, "map": 8})


def read(tmp_path: Path, text: str, job: Job = JOB) -> Space:
    path = tmp_path / "space.toml"
    path.write_text(text)
    return read_space(path, job)


def test_ranges_values_and_tables_of_values_are_read(tmp_path: Path) -> None:
    space = read(
        tmp_path,
        """
        batch_size = [256, 1024]
        hosts.map.z_width = { low = 4, high = 16, step = 4 }
        codec = ["fp32", "int8"]
        [method]
        R.guest = [1, 3, 5]
        xi = { low = 30.0, high = 90.0 }
        """,
    )
    assert space.dimensions == {
        "batch_size": Values((256, 1024)),
        "hosts.map.z_width": Range(low=4, high=16, step=4),
        "codec": Values(("fp32", "int8")),
        "method.R.guest": Values((1, 3, 5)),
        "method.xi": Range(low=30.0, high=90.0),
    }
    tables = 'optimizer = [{ name = "adam", lr = 0.001 }, { name = "sgd", momentum = 0.9 }]'
    assert read(tmp_path, tables).dimensions["optimizer"].examples[1]["momentum"] == 0.9


def test_values_replace_those_of_the_job_and_leave_the_rest(tmp_path: Path) -> None:
    job = Job(rounds=9, hosts={"weather": 8}, method={"R": {"guest": 4, "host": 2}, "W": 7})
    values = {"method.R.guest": 1, "optimizer.lr": 0.5, "codec": "int8", "hosts.weather.z_width": 3}
    new = Space({}).apply(job, {**values, "optimizer.party_lr.weather": 0.1}).contract()
    changed = {k: v for k, v in new.items() if job.contract().get(k) != v}
    assert changed == {
        "method.R.guest": 1,
        "optimizer.lr": 0.5,
        "optimizer.party_lr.weather": 0.1,
        "hosts.weather.z_width": 3,
        **{f"codec.{kind}": "int8" for kind in ("activation", "derivative", "evaluation")},
    }


def test_with_auto_only_the_values_of_a_trial_count_as_given() -> None:
    job = Job(rounds=9, hosts={"weather": 8}, method={"auto": True})
    assert Space({}).apply(job, {"method.R.guest": 5}).given() == {"R"}
    assert Space({}).apply(job, {"batch_size": 32}).given() == set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.learning_rate = [1.0]", "optimizer.learning_rate: expected no such key"),
        ("optimizer.l = [1.0]", "optimizer.l: expected no such key; the keys here are name, lr,"),
        ("optimizr.lr = [1.0]", "optimizr: expected no such key; did you mean optimizer"),
        ("rounds.guest = [1]", "rounds.guest: expected no such key; rounds is not a table"),
        ("batch_size.guest = [1]", "batch_size: expected a valid integer"),
        ("hosts.train.z_width.x = [1]", "hosts.train.z_width"),
        ("optimizer.lr = { low = -1.0, high = 0.1 }", "optimizer.lr: .*greater than 0, got -1.0"),
        ("optimizer.name = ['adagrad', 'lion']", "optimizer.name: .*got 'lion'"),
        ("optimizer.lr = { low = 0.1, high = 0.01 }", "optimizer.lr: expected low below high"),
        ("optimizer.lr = { low = 0.0, high = 0.1, log = true }", "optimizer.lr: low: expected"),
        ("optimizer.lr = { low = 0.1 }", "optimizer.lr: high: expected a value, got nothing"),
        ("optimizer.lr = { low = 0.1, high = 1.0, base = 2 }", "optimizer.lr: base: expected no"),
        ("batch_size = { low = 8, high = 64, step = 0.5 }", "batch_size: step: expected an int"),
        ("optimizer.lr = 0.1", "optimizer.lr: expected a list of values, or a range"),
        ("optimizer.lr = []", "optimizer.lr: expected a list of values, or a range"),
        ("optimizer.lr = [0.1, 0.1]", "optimizer.lr: expected distinct values"),
        ("method.R = [1]\n'method.R.guest' = [1]", "expected it only once, got method.R as well"),
        ("optimizer.lr = [0.1]\n'optimizer.lr' = [0.2]", "optimizer.lr: expected it once"),
        ("seed = [1, 2]", "seed: expected a setting that trials may vary"),
        ("evaluation.metric = ['auc']", "evaluation.metric: expected a setting that trials may"),
        ("epochs = [1, 2]", "exactly one of rounds and epochs"),
        ("", "expected settings to vary, got none"),
        ("a = ", "expected TOML"),
    ],
)
def test_a_wrong_name_or_value_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"space\.toml: (.|\n)*{message}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "fields",
    [
        {"rounds": 5, "hosts": {"weather": 64}},
        {"epochs": 2, "hosts": {"weather": 64}, "preset": "paper", "codec": "int8+zstd"},
        {"rounds": 5, "hosts": {"a-b": 1, "c": 2}, "method": "auto", "optimizer": {"lr": 1e-05}},
        {
            "rounds": 5,
            "hosts": {"weather": 8},
            "optimizer": {"name": "sgd", "momentum": 0.9, "party_lr": {"weather": 0.1}},
            "choices": [{"round": 0, "W": 5, "R": 2, "depth": 2, "codec": "fp32"}],
        },
    ],
)
def test_a_job_that_is_written_and_read_is_equal(fields: dict[str, Any]) -> None:
    job = Job(**fields)
    again = Job(**tomllib.loads(job_toml(job, "A comment")))
    assert again == job and again.contract() == job.contract()


@pytest.mark.parametrize(
    "text", ["hosts.bank.z_width = [8, 16]", "hosts = [{ weather = 8 }, { weather = 16 }]"]
)
def test_a_space_has_the_hosts_of_the_contract(tmp_path: Path, text: str) -> None:
    name = text.partition(" ")[0]
    message = rf"space.toml: {name}: expected the hosts of the contract \(map, weather\), got "
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)
