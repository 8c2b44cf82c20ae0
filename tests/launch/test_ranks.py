"""What the ranks of a party agree on before a run, as another rank than the first sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.config.privacy import Privacy
from celu.config.reading import validate
from celu.data.memory_map import StoreDatasets, open_datasets
from celu.errors import ConfigError, DataError
from celu.launch.ranks import check_same_keys
from celu.launch.same_party import OF_A_RANK, check_same_settings, check_same_store
from celu.party import Guest, Host
from celu.privacy.secret_key import LABELS, NOISE, KeyUse, SecretKey
from celu.ranks.slices import Slices
from federation import federation
from stores import write_store

PRIVACY: dict[str, Any] = {
    "label_epsilon": 1.0,
    "dz_noise": {"name": "gaussian", "clip": 1.0, "noise_multiplier": 1.0},
}
PRIVACY["z_noise"] = {"clip": 1.0, "noise_multiplier": 1.0}


class Second(Slices):
    """The second of two ranks; `first` is what the first one shares."""

    def __init__(self, first: Any) -> None:
        super().__init__(2)
        self.own = range(1, 2)
        self._first = first

    def share(self, compute: Callable[[], Any]) -> Any:
        return self._first

    def any(self, found: bool) -> bool:
        return found


class First(Slices):
    """The first of two ranks; `shared` is what it shared last."""

    def __init__(self) -> None:
        super().__init__(2)
        self.own = range(1)
        self.shared: Any = None

    def share(self, compute: Callable[[], Any]) -> Any:
        self.shared = compute()
        return self.shared

    def any(self, found: bool) -> bool:
        return found


def party_with(path: Path, use: KeyUse, role: str = "guest") -> tuple[celu.Job, Guest | Host]:
    """A party whose contract needs this key only."""
    fed = federation()
    name = {"label_key": "label_epsilon", "noise_key": "dz_noise" if role == "guest" else "z_noise"}
    needed = name[use.argument]
    job = fed.job.model_copy(update={"privacy": Privacy(**{needed: PRIVACY[needed]})})
    party: Guest | Host = fed.guest if role == "guest" else fed.hosts["host"]
    return job, replace(party, **{use.argument: path})


@pytest.mark.parametrize(
    ("use", "role"),
    [(LABELS, "guest"), (NOISE, "guest"), (NOISE, "host")],
    ids=["label", "noise", "noise of a host"],
)
def test_only_the_first_rank_creates_a_key_and_others_need_the_same(
    tmp_path: Path, use: KeyUse, role: str
) -> None:
    path, other = tmp_path / use.file, tmp_path / "other.key"
    job, party = party_with(path, use, role)
    first = SecretKey.read(other, use).fingerprint
    with pytest.raises(ConfigError, match=r"key of the first rank at rank 1, got none; copy"):
        check_same_keys(Second(first), job, party)
    assert not path.exists()
    SecretKey.read(path, use)
    with pytest.raises(ConfigError, match=r"key of the first rank at rank 1, got another; copy"):
        check_same_keys(Second(first), job, party)
    path.write_bytes(other.read_bytes())
    check_same_keys(Second(first), job, party)


def test_a_key_that_no_contract_needs_is_not_created(tmp_path: Path) -> None:
    job, party = party_with(tmp_path / "label.key", LABELS)
    check_same_keys(Second(None), job.model_copy(update={"privacy": Privacy()}), party)
    assert not list(tmp_path.iterdir())


JOB = Job(seed=1, batch_size=4, rounds=1, guest="guest", hosts={})
GUEST: dict[str, Any] = {
    "role": "guest",
    "name": "guest",
    "data": {"store": "store", "aligned": True},
    "model": {"bottom": {"use": "wdl"}, "top": {"use": "wdl"}, "loss": "binary"},
}


def settings_with(**changes: Any) -> PartySettings:
    """A guest's settings; `model` and `data` are added to its own."""
    changes = {k: {**GUEST[k], **v} if k in ("model", "data") else v for k, v in changes.items()}
    return validate(PartySettings, {**GUEST, **changes}, Path("party.toml"))


def compare(
    first: PartySettings, second: PartySettings, jobs: tuple[Job, Job] = (JOB, JOB), more: int = 0
) -> None:
    """What a second rank does with these settings, where the first has others."""
    ranks = First()
    check_same_settings(ranks, first, jobs[0], 0)
    check_same_settings(Second(ranks.shared), second, jobs[1], more)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (
            {"model": {"class_weights": {"1": 3.0}}},
            {"model": {"class_weights": {"1": 9.0}}},
            r"model\.class_weights\.1: expected 3.0 at rank 1, as at rank 0, got 9.0; use",
        ),
        ({}, {"model": {"class_weights": "balanced"}}, r'class_weights: .* none at .*, got "bal'),
        (
            {"model": {"shard": True}},
            {"model": {"shard": False}},
            r"party\.toml: model\.shard: expected true at rank 1, as at rank 0, got false",
        ),
        ({}, {"precision": "tf32"}, r'precision: expected "fp32" at rank 1, .*, got "tf32"'),
        (
            {"data": {"inputs": {"ids": ["a"]}}},
            {"data": {"inputs": {"ids": ["b"]}}},
            r"data\.inputs: expected",
        ),
        ({"start": "run"}, {}, r'start: expected "a run" at rank 1, as at rank 0, got none'),
    ],
    ids=["another weight", "weights", "shard", "precision", "inputs", "start"],
)
def test_a_rank_with_another_setting_is_refused_with_its_key(
    first: dict[str, Any], second: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        compare(settings_with(**first), settings_with(**second))


def test_a_rank_with_another_contract_or_option_is_refused() -> None:
    settings, other = settings_with(), JOB.model_copy(update={"batch_size": 8})
    expected = r"job\.toml: batch_size: expected 4 at rank 1, as at rank 0, got 8; use the same"
    with pytest.raises(ConfigError, match=expected):
        compare(settings, settings, (JOB, other))
    with pytest.raises(ConfigError, match=r"--more: expected none at rank 1, .*, got 5"):
        compare(settings, settings, more=5)


def test_settings_of_a_machine_may_differ() -> None:
    own = {"device": "cuda", "threads": 3, "run_dir": "elsewhere", "tracking": ["wandb"]}
    own |= {"listen": "0.0.0.0:7443", "deadline_s": 7.0, "data": {"store": "copy"}}
    compare(settings_with(), settings_with(**own))
    assert PartySettings.model_fields.keys() > OF_A_RANK


def rows_in(path: Path, **changes: Any) -> StoreDatasets:
    """The rows of a store with labels and a column of numbers."""
    columns: dict[str, Any] = {"label": [0, 1, 1, 0], "x": [0.5, 1.5, 2.5, 3.5], **changes}
    return open_datasets(write_store(path, columns))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"label": [1, 0, 0, 1]}, "the labels of train rows differ; copy the store"),
        ({"x": [0.5, 1.5, 2.5, 9.5]}, "the inputs 'numbers' of train rows differ"),
        ({"label": [0, 1], "x": [0.5, 1.5]}, "the numbers of train rows differ"),
        ({"y": [0.0] * 4}, r"schema\.json and its columns differ"),
    ],
    ids=["labels", "inputs", "rows", "columns"],
)
def test_a_rank_with_another_store_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    ranks, settings = First(), settings_with(data={"store": str(tmp_path / "second")})
    check_same_store(ranks, settings, rows_in(tmp_path / "first"))
    check_same_store(Second(ranks.shared), settings, rows_in(tmp_path / "same"))
    with pytest.raises(DataError, match=r"second: expected the store of .* at rank 1.*") as raised:
        check_same_store(Second(ranks.shared), settings, rows_in(tmp_path / "second", **changes))
    assert raised.match(says)
