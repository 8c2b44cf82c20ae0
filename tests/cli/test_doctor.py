"""`celu doctor` as two companies run it: real processes, certificates and sockets; no rows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.config.templates import SettingsTemplate, write_settings
from celu.errors import CeluError, CertificateError, ConfigError
from celu.testing import free_port, make_keys

TINY = SettingsTemplate(guest="airline", host="weather", bottom='"wdl"', top='"wdl"', z_width=64)
PARTIES = ("airline", "weather")


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Settings and keys, and neither store nor alignment."""
    for name in PARTIES:
        (tmp_path / name).mkdir()
    write_settings(tmp_path, TINY, port=free_port(), local=True)
    make_keys(tmp_path, list(PARTIES))
    for name in PARTIES:
        path = tmp_path / name / "party.toml"
        path.write_text(f'connect_s = 20\nlink = "wan-100"\n{path.read_text()}')
    other = (tmp_path / "job.toml").read_text().replace("batch_size = 4096", "batch_size = 512")
    (tmp_path / "other.toml").write_text(other.replace("rounds = 2000", "rounds = 2001"))
    return tmp_path


def arguments(folder: Path, name: str, job: str = "job.toml") -> list[str]:
    return ["doctor", str(folder / name / "party.toml"), "--job", str(folder / job)]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "celu.cli.app", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "160"},
    )


def test_both_sides_are_told_of_the_line_and_of_contracts_that_differ(pair: Path) -> None:
    # The host does not know where the guest listens until it is told.
    weather = pair / "weather" / "party.toml"
    text = re.sub(r"connect = .*\n", "", weather.read_text())
    weather.write_text(f'listen = "127.0.0.1:1"\n{text}')
    files = {name: pair / f"{name}.json" for name in PARTIES}
    guest = start(*arguments(pair, "airline"), "--seconds", "0.2", "--out", str(files["airline"]))
    assert guest.stdout is not None
    printed = ""
    while "--connect" not in printed:
        line = guest.stdout.readline()
        assert line, f"the guest ended without saying where it listens: {printed}"
        printed += line
    found = re.search(r"weather: +celu doctor party.toml --job job.toml --connect (\S+)", printed)
    assert found is not None, printed
    host = start(
        *arguments(pair, "weather", "other.toml"),
        *("--connect", found[1], "--out", str(files["weather"])),
    )
    outputs = {
        "airline": guest.communicate(timeout=60)[0],
        "weather": host.communicate(timeout=60)[0],
    }
    assert (guest.returncode, host.returncode) == (0, 0), outputs
    for name, peer in (PARTIES, PARTIES[::-1]):
        output = outputs[name]
        for said in (
            f"{name}: the link to {peer}",
            "batch_size: ",
            "rounds: ",
            "celu run refuses",
            "mutual TLS 1.3",
            f"(CN={peer} authority) is valid until",
            "by codec",
            "remove link from party.toml",
        ):
            assert said in output, (said, output)
        written = json.loads(files[name].read_text())
        facts = written["peers"][peer]
        assert written["party"] == name and len(facts["differing"]) == 2
        assert facts["measured"]["rtt_min_s"] >= 0.04
        assert 70 < facts["measured"]["to_guest"]["mbps"] < 130
        assert {f["level"] for f in facts["findings"]} == {"ok", "warn"}
        assert facts["peer_versions"]["protocol"] == facts["versions"]["protocol"]
    assert outputs["airline"].count("bandwidth") >= 3


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("airline.pem", "nobody.pem", CertificateError, "nobody.pem"),
        ('name = "airline"', 'name = "bank"', ConfigError, "name: expected one of"),
    ],
)
def test_what_a_run_would_refuse_ends_with_the_code_of_a_run(
    pair: Path, old: str, new: str, error: type[CeluError], said: str
) -> None:
    path = pair / "airline" / "party.toml"
    path.write_text(path.read_text().replace(old, new))
    result = CliRunner().invoke(app, arguments(pair, "airline"))
    assert isinstance(result.exception, error)
    assert said in str(result.exception)


def test_a_report_that_cannot_be_written_is_refused_before_anybody_waits(pair: Path) -> None:
    missing = pair / "absent" / "report.json"
    result = CliRunner().invoke(app, [*arguments(pair, "airline"), "--out", str(missing)])
    assert isinstance(result.exception, ConfigError)
    assert "--out: expected a file in a folder that exists" in str(result.exception)


def test_a_codec_that_does_not_exist_is_named_before_anybody_waits(pair: Path) -> None:
    job = pair / "job.toml"
    job.write_text(f'codec = "int7"\n{job.read_text()}')
    result = CliRunner().invoke(app, arguments(pair, "airline"))
    assert isinstance(result.exception, ConfigError) and "int7" in str(result.exception)
