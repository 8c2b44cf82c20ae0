"""What was spent on labels adds up, is never lost, and never exceeds the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

import celu
from celu.config.party import PartySettings
from celu.errors import ConfigError
from celu.launch.label_budget import check_label_budget, spend_label_budget
from celu.privacy.ledger import LEDGER, Ledger, Release, read_ledger, spend
from federation import federation
from twins import twin_federation

ONE = Release(key="1" * 32, epsilon=1.0, classes=2, labels="a" * 32)
OTHER_KEY = ONE.model_copy(update={"key": "2" * 32})
OTHER_EPSILON = ONE.model_copy(update={"epsilon": 0.5})
OTHER_LABELS = ONE.model_copy(update={"labels": "b" * 32})


def test_the_same_release_adds_nothing_and_others_add_up(tmp_path: Path) -> None:
    assert spend(tmp_path / "label.key", ONE, None).total == 1.0
    assert spend(tmp_path / "label.key", ONE, None).total == 1.0
    assert spend(tmp_path / "label.key", OTHER_EPSILON, None).total == 1.5
    assert spend(tmp_path / "label.key", OTHER_KEY, None).total == 2.5
    assert spend(tmp_path / "label.key", OTHER_LABELS, None).total == 3.5
    assert read_ledger(tmp_path / "label.key").releases == [
        ONE,
        OTHER_EPSILON,
        OTHER_KEY,
        OTHER_LABELS,
    ]
    assert [path.name for path in tmp_path.iterdir()] == [LEDGER]


def test_a_run_that_exceeds_the_budget_is_refused_by_name_and_not_recorded(tmp_path: Path) -> None:
    spend(tmp_path / "label.key", ONE, 1.4)
    with pytest.raises(ConfigError, match=r"privacy\.budget: expected at most epsilon 1\.4 .*1\.5"):
        spend(tmp_path / "label.key", OTHER_EPSILON, 1.4)
    assert read_ledger(tmp_path / "label.key").total == 1.0
    assert spend(tmp_path / "label.key", ONE, 1.4).total == 1.0


def test_epsilons_that_sum_to_the_budget_are_within_it() -> None:
    ledger = Ledger()
    for key in "123":
        release = ONE.model_copy(update={"key": key * 32, "epsilon": 0.1})
        ledger = ledger.adding(release, 0.3)
    assert len(ledger.releases) == 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"releases": [{"key": "x"}]}', "null"])
def test_a_damaged_ledger_is_refused_and_not_reset(tmp_path: Path, content: str) -> None:
    (tmp_path / LEDGER).write_text(content)
    with pytest.raises(ConfigError, match=r"privacy\.json: expected what was spent"):
        spend(tmp_path / "label.key", ONE, None)
    assert (tmp_path / LEDGER).read_text() == content


def test_a_new_key_has_a_ledger_and_a_key_without_one_is_refused(tmp_path: Path) -> None:
    fed = twin_federation(key=tmp_path / "label.key", rounds=1)
    celu.simulate(fed.job, fed.guest, fed.hosts)  # which spends nothing
    party = guest(tmp_path / "label.key")
    assert read_ledger(tmp_path / "label.key") == Ledger()
    spend_label_budget(settings(None), job(1.0), party)
    (tmp_path / LEDGER).unlink()
    for budget in (None, 2.0):
        with pytest.raises(
            ConfigError, match=r"privacy\.json: expected what was spent .*remove la"
        ):
            spend_label_budget(settings(budget), job(1.0), party)
    assert not (tmp_path / LEDGER).exists()


def settings(budget: float | None) -> PartySettings:
    return PartySettings(role="guest", name="guest", privacy={"budget": budget})


def guest(key: bytes | Path | None) -> celu.Guest:
    fed = federation()
    return celu.Guest(
        top=fed.guest.top, loss="binary", train=fed.guest.train, test=fed.guest.test, label_key=key
    )


def job(epsilon: float | None) -> celu.Job:
    return celu.Job(hosts={"host": 6}, rounds=1, privacy={"label_epsilon": epsilon})


def test_a_run_spends_beside_its_key(tmp_path: Path) -> None:
    party = guest(tmp_path / "label.key")
    check_label_budget(settings(2.0), job(1.5), party)
    assert read_ledger(tmp_path / "label.key").total == 0  # a check spends nothing
    spend_label_budget(settings(2.0), job(1.5), party)
    assert read_ledger(tmp_path / "label.key").total == 1.5
    with pytest.raises(ConfigError, match=r"privacy\.budget: expected at most epsilon 2"):
        check_label_budget(settings(2.0), job(1.0), party)
    (tmp_path / "label.key").unlink()  # the next run has a new key
    with pytest.raises(ConfigError, match=r"privacy\.budget: expected at most epsilon 2"):
        check_label_budget(settings(2.0), job(1.5), party)


def test_a_run_without_label_privacy_exceeds_every_budget(tmp_path: Path) -> None:
    party = guest(tmp_path / "label.key")
    with pytest.raises(ConfigError, match=r"privacy\.budget: expected privacy\.label_epsilon in"):
        check_label_budget(settings(100.0), job(None), party)
    assert check_label_budget(settings(None), job(None), party) is None


def test_a_run_without_label_privacy_is_recorded_beside_a_key(tmp_path: Path) -> None:
    key = tmp_path / "label.key"
    spend_label_budget(settings(None), job(None), guest(key))
    assert not list(tmp_path.iterdir())  # no key, and nothing to record
    spend_label_budget(settings(5.0), job(1.0), guest(key))
    spend_label_budget(settings(None), job(None), party := guest(key))
    spend_label_budget(settings(None), job(None), guest(b"0" * 32))
    assert read_ledger(key).unprotected and read_ledger(key).total == float("inf")
    for epsilon in (1.0, 0.5):
        with pytest.raises(ConfigError, match=r"privacy\.budget: .*an earlier run without privacy"):
            spend_label_budget(settings(5.0), job(epsilon), party)
    spend_label_budget(settings(None), job(0.5), party)
    assert len(read_ledger(key).releases) == 2 and read_ledger(key).unprotected


def test_a_guest_alone_records_nothing(tmp_path: Path) -> None:
    key = tmp_path / "label.key"
    spend_label_budget(settings(None), job(1.0), guest(key))
    spend_label_budget(settings(None), celu.Job(hosts={}, rounds=1), guest(key))
    assert not read_ledger(key).unprotected


def test_a_budget_needs_a_key_in_a_file() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.budget: expected a label_key that is a file"):
        check_label_budget(settings(2.0), job(1.0), guest(b"0" * 32))
    assert check_label_budget(settings(None), job(1.0), guest(b"0" * 32)) is None


def test_a_budget_at_a_host_is_refused() -> None:
    with pytest.raises(ValueError, match=r"privacy\.budget belongs to the guest"):
        PartySettings(role="host", name="host", privacy={"budget": 1.0})
