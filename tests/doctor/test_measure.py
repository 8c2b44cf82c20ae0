"""Lines are measured for what they are, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import celu
from celu.config.link import PROFILES
from celu.doctor.measure import ProbePlan
from celu.errors import ContractMismatch
from celu.events import ignore
from celu.simulation import _run_together
from celu.transport.emulation import PAYLOAD_FRACTION, LinkEmulator
from celu.transport.link import Link
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message
from doctor.clinic import Room, case_of, make_job, warned
from psi.parties import Wrapped


def both(mbps: float, delay_s: float, jitter_s: float = 0.0) -> tuple[LinkEmulator, LinkEmulator]:
    return LinkEmulator(mbps, delay_s, jitter_s, seed=1), LinkEmulator(
        mbps, delay_s, jitter_s, seed=2
    )


@pytest.mark.parametrize("name", ["wan-300", "wan-100"])
def test_a_named_line_is_found_as_it_is_described(name: str) -> None:
    line = PROFILES[name]
    found = Room(
        make_job(), lambda: (LinkEmulator.from_settings(line), LinkEmulator.from_settings(line))
    ).measure()
    assert found.rtt_min_s == pytest.approx(2 * line.delay_ms / 1000, rel=0.1)
    for way in (found.to_host, found.to_guest):
        assert way.mbps == pytest.approx(line.mbps * PAYLOAD_FRACTION, rel=0.05)
        assert way.share == pytest.approx(1.0, abs=0.05)
        assert way.rested_s == pytest.approx(way.parcel_s, rel=0.1)
    assert abs(found.clock_s) <= found.clock_error_s


def test_each_way_is_found_by_itself() -> None:
    found = Room(make_job(), lambda: (LinkEmulator(200, 0.01), LinkEmulator(20, 0.03))).measure()
    assert found.to_host.mbps == pytest.approx(200, rel=0.05)
    assert found.to_guest.mbps == pytest.approx(20, rel=0.05)
    assert found.rtt_min_s == pytest.approx(0.04, rel=0.1)
    assert min(found.to_host.share, found.to_guest.share) > 0.85


def test_jitter_is_told_apart_from_delay() -> None:
    found = Room(make_job(), lambda: both(100, 0.02, jitter_s=0.03)).measure()
    assert 0.002 < found.jitter_s < 0.06
    assert found.rtt_median_s > found.rtt_min_s + 0.002


@pytest.mark.parametrize("ahead_s", [5.0, -86400.0])
def test_a_clock_that_is_wrong_is_found_within_what_is_said(ahead_s: float) -> None:
    found = Room(make_job(), lambda: both(100, 0.02), host_ahead_s=ahead_s).measure()
    assert found.clock_error_s == pytest.approx(0.02, rel=0.2)
    assert abs(found.clock_s - ahead_s) <= found.clock_error_s
    assert "NTP" in warned(case_of(found))["clocks"].change


def test_a_slow_line_takes_seconds_and_a_fast_one_is_bounded_in_bytes() -> None:
    _, clocks = Room(make_job(), lambda: both(0.2, 0.3), ProbePlan(pings=3)).examine()
    assert clocks["guest"].now() < 60
    sent = 0

    def count(link: Link) -> Wrapped:
        def seen(message: Message) -> Message:
            nonlocal sent
            sent += message.tensor.numel() if message.tensor is not None else 0
            return message

        return Wrapped(link, seen)

    plan = ProbePlan(pings=3, max_bytes=8 << 20)
    Room(make_job(), lambda: both(1e5, 0.0), plan, wrap=count).examine()
    assert sent < 5 * plan.max_bytes


@dataclass
class Forgetful(LinkEmulator):
    """A line that is slow with all but small messages after a rest, as a kernel is."""

    slow_s: float = 0.3
    _used_at: float = 0.0

    def arrival(self, num_bytes: int, sent_at: float) -> float:
        if num_bytes > 10_000:
            if sent_at - self._used_at > 1.0:
                self.free_at = sent_at + self.slow_s
            self._used_at = sent_at
        return super().arrival(num_bytes, sent_at)


def test_a_line_that_starts_slowly_after_a_rest_is_told_which_side_sends() -> None:
    found = Room(make_job(), lambda: (Forgetful(100, 0.02), LinkEmulator(100, 0.02))).measure()
    assert found.to_host.rested_s > found.to_host.parcel_s + 0.25
    assert found.to_guest.rested_s < found.to_guest.parcel_s + 0.05
    advice = warned(case_of(found))["idle"]
    assert "tcp_slow_start_after_idle=0, here" in advice.change
    advice = warned(case_of(found, name="host", peer="guest", role="host"))["idle"]
    assert "tcp_slow_start_after_idle=0, at guest" in advice.change


def test_a_rate_of_one_window_a_trip_is_taken_for_a_gateways() -> None:
    found = Room(make_job(), lambda: (LinkEmulator(13.1, 0.02), LinkEmulator(300, 0.02))).measure()
    advice = warned(case_of(found))["gateway"]
    assert advice.words.startswith("to host") and "64 KiB" in advice.words


def test_hosts_are_measured_one_after_the_other() -> None:
    speeds = iter([50.0, 100.0, 200.0])

    def lines() -> tuple[LinkEmulator, LinkEmulator]:
        mbps = next(speeds)
        return LinkEmulator(mbps, 0.01), LinkEmulator(mbps, 0.01)

    found, _ = Room(make_job("a", "b", "c"), lines).examine()
    rates = [found[name].measured.to_guest.mbps for name in "abc"]
    assert rates == pytest.approx([50.0, 100.0, 200.0], rel=0.05)


def test_contracts_that_differ_are_named_and_measured_all_the_same() -> None:
    other = make_job(batch_size=32, codec="int8")
    found, _ = Room(make_job(), lambda: both(100, 0.01), host_job=other).examine()
    assert [field.split(":")[0] for field in found["host"].differing] == [
        "batch_size",
        "codec.activation",
        "codec.derivative",
        "codec.evaluation",
    ]
    assert "guest has 1024, host has 32" in found["host"].differing[0]
    assert found["host"].measured.to_host.mbps > 50


def test_a_peer_that_runs_another_command_is_told_so() -> None:
    from celu.session import host_session
    from federation import federation

    fed = federation()
    to_host, to_guest = memory_links("guest", "host")
    programs = {
        "host": host_session("host", fed.hosts["host"], fed.job, to_guest, ignore),
        "guest": _examine(fed.job, to_host),
    }
    with pytest.raises(ContractMismatch, match=r"`celu run`.*`celu doctor`|doctor`.*`celu run`"):
        _run_together(programs, [to_host])  # type: ignore[arg-type]


def _examine(job: celu.Job, link: Link) -> object:
    from celu.doctor.diagnosis import diagnose_hosts
    from celu.doctor.probes import Watch

    return diagnose_hosts("guest", job, {"host": link}, ProbePlan(), Watch(), lambda words: None)


def test_probes_are_bytes_of_no_meaning() -> None:
    seen = []

    def look(link: Link) -> Wrapped:
        def note(message: Message) -> Message:
            seen.append(message.kind)
            return message

        return Wrapped(link, note)

    Room(make_job(), lambda: both(100, 0.01), wrap=look).examine()
    assert set(seen) == {Kind.HELLO, Kind.READY, Kind.PROBE, Kind.FINDINGS, Kind.GOODBYE}
