"""`celu doctor` as two companies run it: real processes, certificates and sockets; no rows.

The machine may be arbitrarily slow: measured numbers are checked for consistency, not for size.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.config.job import read_job
from celu.config.templates import SettingsTemplate, write_settings
from celu.doctor.estimate import estimate_codecs, estimate_rounds
from celu.doctor.facts import mbps, seconds
from celu.doctor.measurement import read_measurement
from celu.errors import CeluError, CertificateError, ConfigError
from celu.testing import free_port, make_keys
from processes import STDOUT, CeluProcess

TINY = SettingsTemplate(guest="airline", host="weather", bottom='"wdl"', top='"wdl"', z_width=64)
PARTIES = ("airline", "weather")
DEADLINE_S = 600.0  # for a process to end, perhaps on a busy machine
TOPICS = {
    *("contract", "versions", "security", "certificate", "clocks", "link", "latency", "bandwidth"),
    *("idle", "round"),
}


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Settings and keys, without stores and alignments."""
    for name in PARTIES:
        (tmp_path / name).mkdir()
    write_settings(tmp_path, TINY, port=free_port(), local=True)
    make_keys(tmp_path, list(PARTIES))
    for name in PARTIES:
        path = tmp_path / name / "party.toml"
        path.write_text(f'connect_s = 300\nlink = "wan-100"\n{path.read_text()}')
    other = (tmp_path / "job.toml").read_text().replace("batch_size = 4096", "batch_size = 512")
    (tmp_path / "other.toml").write_text(other.replace("rounds = 2000", "rounds = 2001"))
    return tmp_path


def arguments(folder: Path, name: str, job: str = "job.toml") -> list[str]:
    return ["doctor", str(folder / name / "party.toml"), "--job", str(folder / job)]


def start(*arguments: str) -> CeluProcess:
    return CeluProcess(arguments, stderr=STDOUT, env={**os.environ, "COLUMNS": "160"})


def assert_estimates_follow(facts: dict[str, Any], job: Path) -> None:
    """Estimates and the findings about them are those of the measured link."""
    measured = read_measurement(facts["measured"])
    estimate = estimate_rounds(read_job(job), "weather", measured)
    assert facts["forecast"] == asdict(estimate)
    assert facts["codecs"] == {
        name: asdict(each)
        for name, each in estimate_codecs(read_job(job), "weather", measured).items()
    }
    text = " ".join(finding["words"] for finding in facts["findings"])
    assert f"round trip {seconds(measured.rtt_median_s)}" in text
    assert f"{seconds(estimate.serial_s)} with 1 in flight" in text
    for direction in (measured.to_host, measured.to_guest):
        assert f"{mbps(direction.mbps)}, {direction.share:.0%} of it in full duplex" in text


def test_both_parties_get_a_complete_report_with_the_contracts_differences(pair: Path) -> None:
    # The host takes the guest's address from the command that the guest prints.
    weather = pair / "weather" / "party.toml"
    text = re.sub(r"connect = .*\n", "", weather.read_text())
    weather.write_text(f'listen = "127.0.0.1:1"\n{text}')
    files = {name: pair / f"{name}.json" for name in PARTIES}
    guest = start(*arguments(pair, "airline"), "--seconds", "0.2", "--out", str(files["airline"]))
    assert guest.stdout is not None
    printed = ""
    while "--connect" not in printed:
        line = guest.stdout.readline()
        assert line, f"the guest ended without printing the command for the host: {printed}"
        printed += line
    found = re.search(
        r"weather: +celu doctor party.toml --job \S*job.toml --connect (\S+)", printed
    )
    assert found is not None, printed
    host = start(
        *arguments(pair, "weather", "other.toml"),
        *("--connect", found[1], "--out", str(files["weather"])),
    )
    outputs = {
        "airline": guest.communicate(timeout=DEADLINE_S)[0],
        "weather": host.communicate(timeout=DEADLINE_S)[0],
    }
    assert (guest.returncode, host.returncode) == (0, 0), outputs
    assert f"weather: waiting for airline at {found[1].partition('=')[2]}" in outputs["weather"]
    reports = {}
    for name, peer in (PARTIES, PARTIES[::-1]):
        output = outputs[name]
        for expected in (
            f"{name}: link to {peer}",
            "batch_size: ",
            "rounds: ",
            "celu run refuses",
            "mutual TLS 1.3",
            f"(CN={peer} authority) is valid until",
            "by codec",
            "remove link from party.toml",
        ):
            assert expected in output, (expected, output)
        written = json.loads(files[name].read_text())
        facts = written["peers"][peer]
        assert written["party"] == name and len(facts["differing"]) == 2
        assert facts["peer_versions"]["protocol"] == facts["versions"]["protocol"]
        assert {f["what"] for f in facts["findings"]} >= TOPICS
        for finding in facts["findings"]:
            assert finding["words"] in output and finding["change"] in output
        assert_estimates_follow(facts, pair / ("job.toml" if name == "airline" else "other.toml"))
        reports[name] = facts
    ours, theirs = reports["airline"], reports["weather"]
    assert ours["measured"] == theirs["measured"]
    # 20 ms each way are emulated: however busy the machine is, a round trip takes no less.
    assert ours["measured"]["rtt_min_s"] >= 0.04
    assert outputs["airline"].count("bandwidth") >= 3


@pytest.mark.parametrize(
    ("old", "new", "error", "expected"),
    [
        ("airline.pem", "nobody.pem", CertificateError, "nobody.pem"),
        ('name = "airline"', 'name = "bank"', ConfigError, "name: expected one of"),
    ],
)
def test_settings_that_celu_run_refuses_raise_the_same_error(
    pair: Path, old: str, new: str, error: type[CeluError], expected: str
) -> None:
    path = pair / "airline" / "party.toml"
    path.write_text(path.read_text().replace(old, new))
    result = CliRunner().invoke(app, arguments(pair, "airline"))
    assert isinstance(result.exception, error)
    assert expected in str(result.exception)


def test_an_out_file_that_cannot_be_written_is_refused_before_connecting(pair: Path) -> None:
    missing = pair / "absent" / "report.json"
    result = CliRunner().invoke(app, [*arguments(pair, "airline"), "--out", str(missing)])
    assert isinstance(result.exception, ConfigError)
    assert "--out: the folder of" in str(result.exception)


def test_an_unknown_codec_is_named_before_connecting(pair: Path) -> None:
    job = pair / "job.toml"
    job.write_text(f'codec = "int7"\n{job.read_text()}')
    result = CliRunner().invoke(app, arguments(pair, "airline"))
    assert isinstance(result.exception, ConfigError) and "int7" in str(result.exception)
