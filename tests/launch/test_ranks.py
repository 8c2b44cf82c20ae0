"""What the ranks of a party agree on before a run, as another rank than the first sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.config.privacy import Privacy
from celu.errors import ConfigError
from celu.launch.ranks import check_same_keys
from celu.party import Guest, Host
from celu.privacy.secret_key import LABELS, NOISE, KeyUse, SecretKey
from celu.ranks.slices import Slices
from federation import federation

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
