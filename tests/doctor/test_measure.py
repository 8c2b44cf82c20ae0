"""Emulated links are measured exactly, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import celu
from celu.config.link import PROFILES
from celu.doctor.measure import ProbePlan
from celu.errors import ContractMismatch
from celu.events import ignore
from celu.transport.emulation import PAYLOAD_FRACTION, LinkEmulator
from celu.transport.link import Link
from celu.transport.memory import memory_links, run_together
from celu.transport.message import Kind, Message
from doctor.setups import Setup, make_facts, make_job, warned
from psi.parties import Wrapped


def symmetric(
    mbps: float, delay_s: float, jitter_s: float = 0.0
) -> tuple[LinkEmulator, LinkEmulator]:
    return LinkEmulator(mbps, delay_s, jitter_s, seed=1), LinkEmulator(
        mbps, delay_s, jitter_s, seed=2
    )


@pytest.mark.parametrize("name", ["wan-300", "wan-100"])
def test_the_measurement_matches_a_named_profile(name: str) -> None:
    profile = PROFILES[name]
    found = Setup(
        make_job(),
        lambda: (LinkEmulator.from_settings(profile), LinkEmulator.from_settings(profile)),
    ).measure()
    assert found.rtt_min_s == pytest.approx(2 * profile.delay_ms / 1000, rel=0.1)
    for direction in (found.to_host, found.to_guest):
        assert direction.mbps == pytest.approx(profile.mbps * PAYLOAD_FRACTION, rel=0.05)
        assert direction.share == pytest.approx(1.0, abs=0.05)
        assert direction.idle_burst_s == pytest.approx(direction.burst_s, rel=0.1)
    assert abs(found.clock_s) <= found.clock_error_s


def test_each_direction_is_measured_separately() -> None:
    found = Setup(make_job(), lambda: (LinkEmulator(200, 0.01), LinkEmulator(20, 0.03))).measure()
    assert found.to_host.mbps == pytest.approx(200, rel=0.05)
    assert found.to_guest.mbps == pytest.approx(20, rel=0.05)
    assert found.rtt_min_s == pytest.approx(0.04, rel=0.1)
    assert min(found.to_host.share, found.to_guest.share) > 0.85


def test_jitter_is_measured_apart_from_delay() -> None:
    found = Setup(make_job(), lambda: symmetric(100, 0.02, jitter_s=0.03)).measure()
    assert 0.002 < found.jitter_s < 0.06
    assert found.rtt_median_s > found.rtt_min_s + 0.002


@pytest.mark.parametrize("ahead_s", [5.0, -86400.0])
def test_a_wrong_clock_is_measured_within_the_stated_error(ahead_s: float) -> None:
    found = Setup(make_job(), lambda: symmetric(100, 0.02), host_ahead_s=ahead_s).measure()
    assert found.clock_error_s == pytest.approx(0.02, rel=0.2)
    assert abs(found.clock_s - ahead_s) <= found.clock_error_s
    assert "NTP" in warned(make_facts(found))["clocks"].fix


def test_a_slow_link_takes_seconds_and_a_fast_one_is_limited_in_bytes() -> None:
    _, clocks = Setup(make_job(), lambda: symmetric(0.2, 0.3), ProbePlan(pings=3)).diagnose()
    assert clocks["guest"].now() < 60
    sent = 0

    def count(link: Link) -> Wrapped:
        def add(message: Message) -> Message:
            nonlocal sent
            sent += message.tensor.numel() if message.tensor is not None else 0
            return message

        return Wrapped(link, add)

    plan = ProbePlan(pings=3, max_bytes=8 << 20)
    Setup(make_job(), lambda: symmetric(1e5, 0.0), plan, wrap=count).diagnose()
    assert sent < 5 * plan.max_bytes


@dataclass
class SlowRestart(LinkEmulator):
    """A link that is slow with large messages after a pause, as TCP slow start is."""

    slow_s: float = 0.3
    _used_at: float = 0.0

    def arrival(self, num_bytes: int, sent_at: float) -> float:
        if num_bytes > 10_000:
            if sent_at - self._used_at > 1.0:
                self.free_at = sent_at + self.slow_s
            self._used_at = sent_at
        return super().arrival(num_bytes, sent_at)


def test_a_slow_restart_after_a_pause_names_the_side_that_sends() -> None:
    found = Setup(make_job(), lambda: (SlowRestart(100, 0.02), LinkEmulator(100, 0.02))).measure()
    assert found.to_host.idle_burst_s > found.to_host.burst_s + 0.25
    assert found.to_guest.idle_burst_s < found.to_guest.burst_s + 0.05
    advice = warned(make_facts(found))["idle"]
    assert "tcp_slow_start_after_idle=0, here" in advice.fix
    advice = warned(make_facts(found, name="host", peer="guest", role="host"))["idle"]
    assert "tcp_slow_start_after_idle=0, at guest" in advice.fix


def test_one_window_per_round_trip_is_attributed_to_a_gateway() -> None:
    found = Setup(make_job(), lambda: (LinkEmulator(13.1, 0.02), LinkEmulator(300, 0.02))).measure()
    advice = warned(make_facts(found))["gateway"]
    assert advice.message.startswith("to host") and "64 KiB" in advice.message


def test_hosts_are_measured_one_after_the_other() -> None:
    speeds = iter([50.0, 100.0, 200.0])

    def make_emulators() -> tuple[LinkEmulator, LinkEmulator]:
        mbps = next(speeds)
        return LinkEmulator(mbps, 0.01), LinkEmulator(mbps, 0.01)

    found, _ = Setup(make_job("a", "b", "c"), make_emulators).diagnose()
    rates = [found[name].measured.to_guest.mbps for name in "abc"]
    assert rates == pytest.approx([50.0, 100.0, 200.0], rel=0.05)


def test_differing_contracts_are_named_and_the_link_is_measured_anyway() -> None:
    other = make_job(batch_size=32, codec="int8")
    found, _ = Setup(make_job(), lambda: symmetric(100, 0.01), host_job=other).diagnose()
    assert [field.split(":")[0] for field in found["host"].differing] == [
        "batch_size",
        "codec.activation",
        "codec.derivative",
        "codec.evaluation",
    ]
    assert "guest has 1024, host has 32" in found["host"].differing[0]
    assert found["host"].measured.to_host.mbps > 50


def test_a_peer_that_runs_another_command_is_refused() -> None:
    from celu.session import host_session
    from federation import federation

    fed = federation()
    to_host, to_guest = memory_links("guest", "host")
    programs = {
        "host": host_session("host", fed.hosts["host"], fed.job, to_guest, ignore),
        "guest": _diagnose(fed.job, to_host),
    }
    with pytest.raises(ContractMismatch, match=r"`celu run`.*`celu doctor`|doctor`.*`celu run`"):
        run_together(programs, [to_host])  # type: ignore[arg-type]


def _diagnose(job: celu.Job, link: Link) -> object:
    from celu.doctor.diagnosis import diagnose_hosts
    from celu.doctor.probes import Clocks

    return diagnose_hosts("guest", job, {"host": link}, ProbePlan(), Clocks(), lambda text: None)


def test_a_diagnosis_sends_only_probes_and_control_messages() -> None:
    seen = []

    def record_kinds(link: Link) -> Wrapped:
        def record(message: Message) -> Message:
            seen.append(message.kind)
            return message

        return Wrapped(link, record)

    Setup(make_job(), lambda: symmetric(100, 0.01), wrap=record_kinds).diagnose()
    assert set(seen) == {Kind.HELLO, Kind.READY, Kind.PROBE, Kind.FINDINGS, Kind.GOODBYE}
