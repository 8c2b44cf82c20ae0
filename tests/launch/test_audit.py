"""`[audit]` in party.toml: figures in each party's own run folder, on pages, in `celu audit`."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from celu.audit.result import read_audit
from celu.cli.app import app
from celu.config.audit import AuditSettings
from celu.dashboard.live import open_runs
from celu.errors import CheckpointError, ConfigError
from celu.launch.auditing import audit_options
from celu.launch.folder import open_run_folder
from celu.record.folders import read_runs
from celu.report.content import content
from cli.pair import pair_at


def invoke(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=True)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    """The guest's run folder of an audited simulation; the host's is in it."""
    pair_at(tmp_path, tmp_path / "keys")
    job = tmp_path / "job.toml"
    job.write_text(job.read_text().replace("rounds = 60", "rounds = 20"))
    parties = [tmp_path / name / "party.toml" for name in ("airline", "weather")]
    for party in parties:
        party.write_text(party.read_text() + "\n[audit]\nrows = 400\n")
    invoke("simulate", *parties, "--job", job, "--out", tmp_path / "run")
    return tmp_path / "run"


def test_each_party_finds_its_own_figures_in_its_own_folder(audited: Path) -> None:
    guest, host = audited, audited / "hosts" / "weather"
    of_guest, of_host = read_audit(guest), read_audit(host)
    assert of_guest is not None and of_host is not None
    assert of_guest.labels and not of_guest.columns
    assert of_host.columns and not of_host.labels
    key = (guest / "audit.key").read_text().strip()
    assert stat.S_IMODE((guest / "audit.key").stat().st_mode) == 0o600
    assert key != (host / "audit.key").read_text().strip()
    events = (guest / "events.jsonl").read_text()
    assert '"audit"' in events
    assert all(key not in text for text in (events, (guest / "audit.json").read_text()))

    text = invoke("audit", guest)
    assert "What weather can learn of labels" in text
    assert all(name in text for name in ("norm", "cosine", "spectral", "linear", "network"))
    assert "not covered" in text
    text = invoke("audit", host)
    assert "What the guest can learn of columns" in text
    assert of_host.columns[0].name in text
    assert "[" not in of_host.columns[0].name  # the name of a column, not the number of an input

    shown = content(read_runs([guest, host]))["runs"]
    assert [run["audit"]["tables"][0]["title"] for run in shown] == [
        "What weather can learn of labels",
        "What the guest can learn of columns",
    ]
    live = open_runs([guest])[0]
    live.refresh()
    assert live.state()["audit"] == shown[0]["audit"]


def test_a_run_without_an_audit_says_how_to_get_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "add [audit] to party.toml" in str(result.exception)


def test_more_canaries_than_half_of_the_rows_are_refused() -> None:
    with pytest.raises(ValidationError, match="at most half of audit"):
        AuditSettings(rows=400, canaries=201)


def test_a_damaged_key_is_refused(audited: Path) -> None:
    from celu.config.job import read_job
    from celu.config.party import read_party

    folder = audited.parent
    settings = read_party(folder / "airline" / "party.toml")
    settings = settings.model_copy(update={"run_dir": folder / "other"})
    opened = open_run_folder(settings, read_job(folder / "job.toml"))
    first = audit_options(settings, opened)
    assert first is not None and first == audit_options(settings, opened)
    (folder / "other" / "audit.key").write_text("abc")
    with pytest.raises(CheckpointError, match=r"audit\.key"):
        audit_options(settings, opened)
    opened.finish({})
