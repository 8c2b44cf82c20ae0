"""Over real sockets and TLS: a line is found, with one emulated and with none."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celu.certs import make_authority, make_party
from celu.doctor.diagnosis import Diagnosis, diagnose_guest, diagnose_hosts
from celu.doctor.measure import ProbePlan
from celu.doctor.probes import Watch
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.emulation import LinkEmulator
from celu.transport.link import run_blocking
from doctor.clinic import make_job

PLAN = ProbePlan(pings=5, bulk_s=0.4, rest_s=0.1, max_bytes=16 << 20)


def examine(
    folder: Path, line: Callable[[], LinkEmulator | None]
) -> tuple[dict[str, Diagnosis], dict[str, Diagnosis]]:
    job = make_job()
    for name in ("guest", "host"):
        make_authority(folder / name, name)
        make_party(folder / name, name)

    def keys(name: str, peer: str) -> tuple[Path, Path, dict[str, Path]]:
        own = folder / name
        return own / f"{name}.pem", own / f"{name}.key", {peer: folder / peer / "ca.pem"}

    ports: queue.Queue[int] = queue.Queue()

    def guest() -> dict[str, Diagnosis]:
        here = Endpoint(
            "guest",
            "127.0.0.1:0",
            ("host",),
            keys=keys("guest", "host"),
            connect_s=20,
            deadline_s=20,
            make_emulator=line,
        )
        with open_links(here, ports.put) as links:
            said: list[str] = []
            found = diagnose_hosts("guest", job, links, PLAN, Watch(), said.append)
            return run_blocking(found)

    def host() -> dict[str, Diagnosis]:
        there = Endpoint(
            "host",
            connect={"guest": Route(f"127.0.0.1:{ports.get(timeout=20)}")},
            keys=keys("host", "guest"),
            connect_s=20,
            deadline_s=20,
            make_emulator=line,
        )
        with open_links(there) as links:
            found = diagnose_guest("host", job, links["guest"], Watch(), lambda words: None)
            return run_blocking(found)

    with ThreadPoolExecutor(2) as pool:
        parties = [pool.submit(guest), pool.submit(host)]
        ours, theirs = (party.result(timeout=60) for party in parties)
    return ours, theirs


def test_an_emulated_line_is_found_at_both_parties(tmp_path: Path) -> None:
    ours, theirs = examine(tmp_path, lambda: LinkEmulator(100, 0.01))
    found = ours["host"].measured
    assert theirs["guest"].measured == found
    assert 0.02 <= found.rtt_min_s < 0.06
    for way in (found.to_host, found.to_guest):
        assert way.mbps == pytest.approx(100, rel=0.3)
        assert way.duplex_mbps == pytest.approx(100, rel=0.3)
    assert abs(found.clock_s) <= found.clock_error_s
    assert ours["host"].differing == [] and ours["host"].versions == theirs["guest"].versions


def test_without_a_line_it_ends_as_well(tmp_path: Path) -> None:
    ours, theirs = examine(tmp_path, lambda: None)
    assert ours["host"].measured == theirs["guest"].measured
    assert ours["host"].measured.to_host.mbps > 0
