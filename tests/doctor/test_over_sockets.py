"""Over real sockets and TLS a diagnosis completes and both parties have the same results.

`test_measure` tests the accuracy of measurements, in virtual time. Here a busy machine may make the
link arbitrarily slow, so these tests assert only what holds at any speed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from celu.certs import make_authority, make_party
from celu.doctor.diagnosis import Diagnosis, diagnose_guest, diagnose_hosts
from celu.doctor.measure import ProbePlan
from celu.doctor.probes import Clocks
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.emulation import LinkEmulator
from celu.transport.link import run_blocking
from doctor.setups import make_job

WAIT_S = 600.0  # for a message, a connection or a party, perhaps on a busy machine
PLAN = ProbePlan(pings=5, bulk_s=0.4, pause_s=0.1, max_bytes=16 << 20)
# One clock for both parties that nobody adjusts, unlike the time of day.
CLOCKS = Clocks(wall=lambda: 1.7e9 + time.perf_counter())


def diagnose(
    folder: Path, make_emulator: Callable[[], LinkEmulator | None]
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
            connect_s=WAIT_S,
            deadline_s=WAIT_S,
            make_emulator=make_emulator,
        )
        with open_links(here, ports.put) as links:
            found = diagnose_hosts("guest", job, links, PLAN, CLOCKS, lambda text: None)
            return run_blocking(found)

    def host() -> dict[str, Diagnosis]:
        there = Endpoint(
            "host",
            connect={"guest": Route(f"127.0.0.1:{ports.get(timeout=WAIT_S)}")},
            keys=keys("host", "guest"),
            connect_s=WAIT_S,
            deadline_s=WAIT_S,
            make_emulator=make_emulator,
        )
        with open_links(there) as links:
            found = diagnose_guest("host", job, links["guest"], CLOCKS, lambda text: None)
            return run_blocking(found)

    with ThreadPoolExecutor(2) as pool:
        parties = [pool.submit(guest), pool.submit(host)]
        ours, theirs = (party.result(timeout=WAIT_S) for party in parties)
    return ours, theirs


def assert_consistent(ours: dict[str, Diagnosis], theirs: dict[str, Diagnosis]) -> None:
    found = ours["host"].measured
    assert theirs["guest"].measured == found
    assert 0 < found.rtt_min_s <= found.rtt_median_s
    assert abs(found.clock_s) <= found.clock_error_s == found.rtt_min_s / 2
    for direction in (found.to_host, found.to_guest):
        assert direction.mbps > 0 and direction.duplex_mbps > 0
        assert direction.burst_bytes > 0
        assert direction.burst_s > 0 and direction.idle_burst_s > 0
    assert ours["host"].differing == [] and ours["host"].versions == theirs["guest"].versions


def test_both_parties_measure_an_emulated_link_and_agree(tmp_path: Path) -> None:
    ours, theirs = diagnose(tmp_path, lambda: LinkEmulator(100, 0.01))
    assert_consistent(ours, theirs)
    measured = ours["host"].measured
    # The emulated delay of 10 ms each way is a lower bound, however busy the machine is.
    assert measured.rtt_min_s >= 0.02
    for direction in (measured.to_host, measured.to_guest):
        assert min(direction.burst_s, direction.idle_burst_s) >= 0.02


def test_both_parties_measure_a_link_without_emulation_and_agree(tmp_path: Path) -> None:
    assert_consistent(*diagnose(tmp_path, lambda: None))
