"""Two companies with different rows in different order align and train, as processes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from celu.config.templates import SettingsTemplate, write_settings
from celu.testing import free_port, make_keys
from processes import STDOUT, CeluProcess
from stores import write_store

DEADLINE_S = 600.0  # for a process to end, perhaps on a busy machine
TINY = SettingsTemplate(
    guest="airline",
    host="weather",
    bottom='{ use = "wdl", hidden = [8] }',
    top='"wdl"',
    batch_size=32,
    z_width=4,
    rounds=6,
    evaluate_every=3,
)
PEOPLE = {"airline": range(900), "weather": range(300, 1500)}


def people(name: str, seed: int) -> dict[str, list[str]]:
    """The people in each part of a party's store, in the party's own order."""
    mixed = np.random.default_rng(seed).permutation(PEOPLE[name]).tolist()
    return {
        "train": [f"person-{p}" for p in mixed if p % 10],
        "test": [f"person-{p}" for p in mixed if p % 10 == 0],
    }


def columns(ids: list[str], label: bool) -> dict[str, np.ndarray]:
    number = np.array([int(name.split("-")[1]) for name in ids])
    made = {"x": np.sin(number).astype(np.float32), "person": number.astype(np.float32)}
    return made | ({"label": (np.sin(number) > 0.2).astype(np.float32)} if label else {})


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    for seed, name in enumerate(PEOPLE):
        ids = people(name, seed)
        parts = {part: columns(ids[part], name == "airline") for part in ids}
        write_store(tmp_path / name / "store", parts["train"], test=parts["test"], ids=ids)
    write_settings(tmp_path, TINY, port=free_port(), local=True, aligned=False)
    make_keys(tmp_path, list(PEOPLE))
    for name in PEOPLE:
        path = tmp_path / name / "party.toml"
        path.write_text(path.read_text().replace("[peers", "connect_s = 300\n[peers", 1))
    return tmp_path


def start(folder: Path, name: str, command: str) -> CeluProcess:
    return CeluProcess(
        [command, folder / name / "party.toml", "--job", folder / "job.toml"],
        stderr=STDOUT,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    )


def both(folder: Path, *commands: str) -> list[tuple[int, str]]:
    """Run one command at both parties, or one at each, until they end."""
    pairs = zip(PEOPLE, commands * 2 if len(commands) == 1 else commands, strict=True)
    processes = [start(folder, name, command) for name, command in pairs]
    outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    return [(p.returncode, out) for p, out in zip(processes, outputs, strict=True)]


def alone(folder: Path, name: str, command: str) -> tuple[int, str]:
    """Run a command that fails before it connects."""
    process = start(folder, name, command)
    output, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, output


def aligned_people(folder: Path, name: str, part: str, seed: int) -> list[str]:
    rows = np.load(folder / name / "alignment" / f"{part}.npy")
    return [people(name, seed)[part][row] for row in rows]


def test_two_parties_align_their_common_rows_and_train_on_them(pair: Path) -> None:
    for code, output in both(pair, "align"):
        assert code == 0, output
        assert "540" in output and "60 held out" in output
    for part, expected in (("train", 540), ("test", 60)):
        ours, theirs = (aligned_people(pair, n, part, i) for i, n in enumerate(PEOPLE))
        assert ours == theirs, "the same people in the same order"
        assert len(set(ours)) == expected
    facts = [json.loads((pair / n / "alignment/alignment.json").read_text()) for n in PEOPLE]
    assert facts[0]["commitments"] == facts[1]["commitments"]
    assert (facts[0]["peers"], facts[0]["common"]) == ({"weather": 1200}, {"weather": 600})
    assert not list(pair.rglob("*.work")), "no key is left on disk"
    for code, output in both(pair, "run"):
        assert code == 0, output


def test_a_store_that_was_rebuilt_is_refused_until_it_is_aligned_again(pair: Path) -> None:
    assert [code for code, _ in both(pair, "align")] == [0, 0]
    ids = people("weather", seed=77)
    parts = {part: columns(ids[part], label=False) for part in ids}
    write_store(pair / "weather" / "store", parts["train"], test=parts["test"], ids=ids)
    code, output = alone(pair, "weather", "run")
    assert code == 13, output
    assert "AlignmentError" in output and "celu align" in output
    assert [code for code, _ in both(pair, "align")] == [0, 0]
    ended = both(pair, "run")
    assert [code for code, _ in ended] == [0, 0], ended


def test_three_parties_align_the_rows_that_all_have(pair: Path) -> None:
    ids = {
        "train": [f"person-{p}" for p in range(500, 2000) if p % 10],
        "test": [f"person-{p}" for p in range(500, 2000, 10)],
    }
    parts = {part: columns(ids[part], label=False) for part in ids}
    write_store(pair / "bank" / "store", parts["train"], test=parts["test"], ids=ids)
    make_keys(pair, ["bank"])
    host, guest = ((pair / name / "party.toml").read_text() for name in ("weather", "airline"))
    (pair / "bank" / "party.toml").write_text(host.replace("weather", "bank"))
    more = '[peers.bank]\nca = "../bank/certs/ca.pem"\n[keys]'
    (pair / "airline" / "party.toml").write_text(guest.replace("[keys]", more))
    job = pair / "job.toml"
    job.write_text(job.read_text() + "\n[hosts.bank]\nz_width = 4\n")
    names = ["airline", "weather", "bank"]
    for command in ("align", "run"):
        processes = [start(pair, name, command) for name in names]
        ended = [(p.communicate(timeout=DEADLINE_S)[0], p.returncode) for p in processes]
        assert [code for _, code in ended] == [0, 0, 0], ended
    facts = [json.loads((pair / n / "alignment/alignment.json").read_text()) for n in names]
    assert len({f["commitments"]["train"] for f in facts}) == 1
    assert all(f["rows"] == {"train": 360, "test": 40} for f in facts)
    assert facts[0]["common"] == {"weather": 600, "bank": 400}


def test_stores_with_different_splits_are_refused(pair: Path) -> None:
    schema = pair / "weather" / "store" / "schema.json"
    schema.write_text(schema.read_text().replace('"seed": 1', '"seed": 2'))
    for code, output in both(pair, "align"):
        assert code in (7, 12), output
        assert "split.seed" in output


def test_a_run_that_meets_an_alignment_names_both_commands(pair: Path) -> None:
    assert [code for code, _ in both(pair, "align")] == [0, 0]
    for code, output in both(pair, "align", "run"):
        assert code in (7, 12), output
        assert "celu align" in output and "celu run" in output


def test_rows_without_an_alignment_are_refused_with_the_next_step(pair: Path) -> None:
    code, output = alone(pair, "weather", "run")
    assert code == 4
    assert 'run "celu align" at all parties' in output


def test_different_rows_declared_as_aligned_are_refused(pair: Path) -> None:
    for name in PEOPLE:
        path = pair / name / "party.toml"
        text = path.read_text()
        assert 'alignment = "alignment"' in text
        path.write_text(text.replace('alignment = "alignment"', "aligned = true"))
    for code, output in both(pair, "run"):
        assert code in (7, 12), output
        assert "train_rows" in output or "train_ids" in output


def test_an_alignment_that_is_killed_resumes(pair: Path) -> None:
    guest, host = (start(pair, name, "align") for name in PEOPLE)
    work = pair / "weather" / ".alignment.work" / "airline"
    deadline = time.monotonic() + DEADLINE_S
    while not (work / "state").exists() and host.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    host.send_signal(signal.SIGKILL)
    host.communicate()
    for process in (start(pair, "weather", "align"), guest):  # the guest reconnects by itself
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
    assert not list(pair.rglob("*.work"))
