"""Label privacy with the commands: a key and a ledger beside the store, a budget, an export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.pair import Pair, celu, pair_at


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    pair = pair_at(tmp_path, keys)
    job = pair.folder / "job.toml"
    job.write_text(job.read_text() + "\n[privacy]\nlabel_epsilon = 1.0\n")
    party = pair.folder / "airline" / "party.toml"
    party.write_text(party.read_text() + "\n[privacy]\nbudget = 2.0\n")
    return pair


def words(*arguments: str | Path) -> tuple[int, str]:
    done = celu(*arguments)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_runs_share_a_key_and_a_budget_and_the_own_models_are_exported(pair: Pair) -> None:
    folder = pair.folder / "airline"
    checked = ("check", folder / "party.toml", "--job", pair.folder / "job.toml")
    code, text = words(*checked)
    assert code == 0, text
    assert "ok privacy: labels at epsilon 1; with this run 1 is spent on them in all" in text
    assert json.loads((folder / "privacy.json").read_text())["releases"] == []
    guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), (guest.err, host.err)
    secret = (folder / "label.key").read_text().strip()
    assert (folder / "label.key").stat().st_mode & 0o777 == 0o600
    assert not (pair.folder / "weather" / "label.key").exists()
    ledger = json.loads((folder / "privacy.json").read_text())
    assert [release["epsilon"] for release in ledger["releases"]] == [1.0]
    for path in pair.folder.glob("*/run/**/*"):
        if path.is_file():
            content = path.read_bytes()
            assert secret.encode() not in content and bytes.fromhex(secret) not in content
    assert "label privacy: epsilon 1 is spent (1)" in words("inspect", folder / "store")[1]
    code, text = words("export", folder / "run", "--out", folder / "model")
    assert code == 0, text
    facts = json.loads((folder / "model" / "model.json").read_text())
    assert facts["own_weights"] != facts["identity"]["weights"]["airline"]
    pair.edit("job.toml", "label_epsilon = 1.0", "label_epsilon = 1.5")
    for command in ("check", "run"):
        more = ["--out", folder / "second"] if command == "run" else []
        code, text = words(command, *checked[1:], *more)
        assert code == 3, text
        assert "privacy.budget: expected at most epsilon 2 for these labels, got 2.5" in text
    assert json.loads((folder / "privacy.json").read_text()) == ledger


def test_noise_has_a_key_at_each_party_and_check_and_card_say_what_it_promises(pair: Pair) -> None:
    pair.edit("airline/party.toml", "budget = 2.0", "")
    noise = "z_noise = { clip = 1.0, noise_multiplier = 5.0 }\n"
    noise += 'dz_noise = { name = "gaussian", clip = 0.2, noise_multiplier = 1.0 }'
    pair.edit("job.toml", "label_epsilon = 1.0", noise)
    folders = {name: pair.folder / name for name in ("airline", "weather")}
    code, text = words(
        "check", folders["weather"] / "party.toml", "--job", pair.folder / "job.toml"
    )
    assert code == 0, text
    assert "ok privacy: Z: a row's own Z has epsilon " in text
    assert "ok privacy: dZ: gaussian noise, no epsilon" in text
    guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), (guest.err, host.err)
    for folder in folders.values():
        secret = (folder / "noise.key").read_text().strip()
        assert (folder / "noise.key").stat().st_mode & 0o777 == 0o600
        for path in pair.folder.glob("*/run/**/*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes()
    code, text = words("export", folders["weather"] / "run", "--out", folders["weather"] / "model")
    assert code == 0, text
    card = (folders["weather"] / "model" / "card.md").read_text()
    assert "- Z: a row's own Z has epsilon " in card and "The contract had no defence" not in card
    assert json.loads((folders["weather"] / "model" / "model.json").read_text())["z_clip"] == 1.0
