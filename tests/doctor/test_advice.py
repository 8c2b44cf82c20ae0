"""Advice from hand-written measurements."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.certs import make_authority, make_party
from celu.doctor.advice import advise
from celu.doctor.facts import LinkFacts, seconds, size
from celu.doctor.machine import Certificate, Machine, read_certificates, this_machine
from celu.doctor.measurement import Direction, Measurement
from celu.errors import CertificateError
from celu.transport.wire import HEADER
from doctor.setups import make_facts, make_job, warned

# 300 Mbps, a round trip of 40 ms, nothing wrong.
DIRECTION = Direction(
    mbps=300, duplex_mbps=300, burst_bytes=3_750_000, burst_s=0.14, idle_burst_s=0.14
)
LINK = Measurement(0.040, 0.041, 0.0005, 0.0, 0.02, DIRECTION, DIRECTION)
LAN = replace(
    LINK,
    rtt_min_s=0.0003,
    rtt_median_s=0.0004,
    to_host=replace(DIRECTION, mbps=900, duplex_mbps=880, burst_s=0.04, idle_burst_s=0.04),
    to_guest=replace(DIRECTION, mbps=900, duplex_mbps=880, burst_s=0.04, idle_burst_s=0.04),
)
FILLED = make_job(method={"depth": 4}, batch_size=8192, codec="int8")
KERNEL = Machine("bbr", (4096, 131072, 33554432), (4096, 16384, 4194304), True)


def link(**changes: Any) -> Measurement:
    return replace(LINK, **changes)


def to_host(**changes: Any) -> Measurement:
    """The link with its direction to the host changed."""
    return replace(LINK, to_host=replace(DIRECTION, **changes))


def link_facts(measured: Measurement = LINK, job: celu.Job = FILLED, **more: Any) -> LinkFacts:
    return make_facts(measured, job, **{"machine": KERNEL, **more})


def test_a_good_link_gets_no_warning_and_a_finding_of_every_rule() -> None:
    assert warned(link_facts()) == {}
    assert {finding.topic for finding in advise(link_facts())} == {
        *("contract", "versions", "security", "clocks", "latency", "bandwidth", "buffers"),
        *("congestion", "idle", "round", "depth", "codec"),
    }


def test_a_lan_needs_no_tuning() -> None:
    job = make_job()
    assert warned(link_facts(LAN, job)) == {}
    text = " ".join(finding.message for finding in advise(link_facts(LAN, job)))
    assert "a run will not wait for it" in text


@pytest.mark.parametrize("connects", [True, False])
def test_a_small_window_names_the_side_that_connects(connects: bool) -> None:
    found = warned(link_facts(to_host(mbps=13.1, duplex_mbps=13.1), connects=connects))
    advice = found["gateway"]
    assert "to host 13.1 Mbps" in advice.message and "64 KiB" in advice.message
    assert ("our party.toml" if connects else "host's party.toml") in advice.fix
    assert "streams = 32" in advice.fix and 'carrier = "websocket"' in advice.fix


@pytest.mark.parametrize("mbps", [300.0, 40.0, 5.0])
def test_other_rates_are_not_mistaken_for_a_window(mbps: float) -> None:
    assert "gateway" not in warned(link_facts(to_host(mbps=mbps, duplex_mbps=mbps)))


def test_with_a_short_round_trip_no_window_is_suspected() -> None:
    near = link(rtt_min_s=0.0005, to_host=replace(DIRECTION, mbps=1000, duplex_mbps=1000))
    assert "gateway" not in warned(link_facts(near))


def test_a_slow_restart_after_a_pause_gets_the_kernel_setting_or_depth() -> None:
    slow_restart = to_host(idle_burst_s=0.7)
    assert "slow_start_after_idle=0, here" in warned(link_facts(slow_restart))["idle"].fix
    already = replace(KERNEL, slow_start_after_idle=False)
    advice = warned(link_facts(slow_restart, machine=already))["idle"]
    assert "sysctl" not in advice.fix and "depth" in advice.fix
    theirs = link_facts(slow_restart, machine=already, name="host", peer="guest", role="host")
    assert "slow_start_after_idle=0, at guest" in warned(theirs)["idle"].fix


def test_a_restart_that_costs_less_than_a_round_trip_is_no_warning() -> None:
    assert "idle" not in warned(link_facts(to_host(burst_s=0.01, idle_burst_s=0.03)))


def test_small_buffers_get_the_sysctl_command() -> None:
    long = link(rtt_median_s=0.1, rtt_min_s=0.1)  # 3.75 MB in flight
    advice = warned(link_facts(long))["buffers"]
    assert advice.fix == 'sysctl -w net.ipv4.tcp_wmem="4096 16384 16777216", here.'
    far = replace(long, rtt_median_s=0.5)
    changes = [f.fix for f in advise(link_facts(far)) if f.topic == "buffers"]
    assert changes == [
        'sysctl -w net.ipv4.tcp_wmem="4096 16384 134217728", here.',
        'sysctl -w net.ipv4.tcp_rmem="4096 131072 134217728", here.',
    ]


def test_unknown_kernel_settings_get_no_advice() -> None:
    kinds = {finding.topic for finding in advise(link_facts(machine=Machine()))}
    assert not kinds & {"buffers", "congestion"}


def test_cubic_on_a_long_link_is_mentioned_without_a_warning() -> None:
    cubic = replace(KERNEL, congestion_control="cubic")
    (found,) = [f for f in advise(link_facts(machine=cubic)) if f.topic == "congestion"]
    assert found.level == "ok" and "tcp_congestion_control=bbr" in found.fix
    (found,) = [f for f in advise(link_facts(LAN, machine=cubic)) if f.topic == "congestion"]
    assert not found.fix


def test_directions_that_share_the_bandwidth_get_a_warning() -> None:
    advice = warned(link_facts(to_host(duplex_mbps=150)))["bandwidth"]
    assert "50% of it" in advice.message and "codec" in advice.fix


def test_jitter_gets_a_warning_only_with_one_round_in_flight() -> None:
    shaky = link(jitter_s=0.02)
    assert "depth = 2" in warned(link_facts(shaky, make_job()))["latency"].fix
    assert "latency" not in warned(link_facts(shaky))


@pytest.mark.parametrize(("ahead_s", "role"), [(2.5, "guest"), (-2.5, "host")])
def test_the_peers_clock_is_compared_with_ours_in_both_roles(ahead_s: float, role: str) -> None:
    peer = "host" if role == "guest" else "guest"
    facts = link_facts(link(clock_s=ahead_s), name=role and "us", peer=peer, role=role)
    assert "is 2.50 s ahead of ours" in warned(facts)["clocks"].message
    assert "clocks" not in warned(link_facts(link(clock_s=2.5, clock_error_s=2.0)))


def test_every_differing_field_is_a_finding() -> None:
    facts = link_facts(
        differing=["seed: guest has 1, host has 2", "rounds: guest has 5, host has 6"]
    )
    found = [f.message for f in advise(facts) if f.topic == "contract"]
    assert found == facts.differing
    assert "celu run refuses" in warned(facts)["contract"].fix


def test_another_release_gets_a_warning_and_another_python_is_mentioned() -> None:
    facts = link_facts()
    other = {**facts.versions, "celu": "0.0.1", "python": "3.99"}
    found = {f.message: f.level for f in advise(replace(facts, peer_versions=other))}
    assert any("0.0.1 at host" in text and level == "warn" for text, level in found.items())
    assert any("3.99 at host" in text and level == "ok" for text, level in found.items())


def test_an_expiring_certificate_names_who_renews_it() -> None:
    soon = [
        Certificate("guest", "CN=guest", "2030-01-01", 12.0),
        Certificate("authority of host", "CN=host", "2030-01-01", 29.9),
    ]
    found = [f for f in advise(link_facts(certificates=soon)) if f.topic == "certificate"]
    assert [f.level for f in found] == ["warn", "warn"]
    assert "celu certs party guest" in found[0].fix and "Ask host" in found[1].fix
    later = [replace(c, days_left=31.0) for c in soon]
    assert "certificate" not in warned(link_facts(certificates=later))


def test_insecure_and_emulated_links_get_a_warning() -> None:
    found = warned(link_facts(insecure=True, emulated=True))
    assert "insecure = true" in found["security"].fix
    assert "remove link" in found["link"].fix


def test_certificates_are_read_from_their_files(tmp_path: Path) -> None:
    make_authority(tmp_path, "acme")
    make_party(tmp_path, "guest", days=20)
    keys = tmp_path / "guest.pem", tmp_path / "guest.key", {"host": tmp_path / "ca.pem"}
    ours, theirs = read_certificates("guest", keys, dt.datetime.now(dt.UTC))
    assert (ours.whose, ours.subject) == ("guest", "CN=guest")
    assert ours.days_left == pytest.approx(20, abs=0.1)
    assert (theirs.whose, theirs.subject) == ("authority of host", "CN=acme authority")
    with pytest.raises(CertificateError, match=r"ca\.key"):
        read_certificates(
            "guest", (*keys[:2], {"host": tmp_path / "ca.key"}), dt.datetime.now(dt.UTC)
        )


def test_kernel_settings_are_read_where_they_exist(tmp_path: Path) -> None:
    assert this_machine(tmp_path) == Machine()
    (tmp_path / "tcp_congestion_control").write_text("cubic\n")
    (tmp_path / "tcp_rmem").write_text("4096\t131072\t6291456\n")
    (tmp_path / "tcp_wmem").write_text("odd\n")
    (tmp_path / "tcp_slow_start_after_idle").write_text("1\n")
    assert this_machine(tmp_path) == Machine("cubic", (4096, 131072, 6291456), None, True)


def test_a_round_is_estimated_from_bytes_and_round_trips() -> None:
    found = link_facts(LINK, make_job(batch_size=4096)).estimate
    assert found.to_guest_bytes == HEADER.size + 4096 * 64 * 4
    alone_s = found.to_guest_bytes * 8 / 300e6
    assert found.serial_s == pytest.approx(0.041 + 2 * alone_s)
    assert found.full_s == pytest.approx(alone_s)
    assert found.depth == 4  # 97 ms against 28
    assert found.seconds(2) == pytest.approx(found.serial_s / 2)
    assert found.seconds(9) == found.full_s


def test_the_most_precise_codec_that_helps_is_advised() -> None:
    heavy = warned(link_facts(LINK, make_job(batch_size=65536)))["codec"]
    assert 'codec = "int8"' in heavy.fix and "with bf16" in heavy.message
    middling = warned(link_facts(LINK, make_job(batch_size=4096)))["codec"]
    assert 'codec = "bf16"' in middling.fix
    assert "codec" not in warned(link_facts(LINK, make_job(batch_size=512)))
    assert "codec" not in warned(link_facts(LINK, make_job(batch_size=65536, codec="int8")))


def test_more_rounds_in_flight_are_advised_where_the_link_idles() -> None:
    advice = warned(link_facts(LINK, make_job()))["depth"]
    assert "Set depth = 4" in advice.fix and "(8 fill the link)" in advice.message
    assert "depth" not in warned(link_facts(LINK, make_job(method={"depth": 4})))
    assert not warned(link_facts(LINK, make_job(method="auto"))).keys() & {"depth", "codec"}


def test_an_estimate_with_two_codecs_names_both() -> None:
    job = make_job(codec={"activation": "int8", "derivative": "bf16"})
    found = link_facts(LINK, job).estimate
    assert found.codec == "Z int8, dZ bf16"
    assert found.to_guest_bytes < found.to_host_bytes


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.00012, "0.12 ms"),
        (0.0411, "41.1 ms"),
        (3.14159, "3.14 s"),
        (300, "5.0 min"),
        (8e3, "2.2 h"),
    ],
)
def test_seconds_are_formatted_for_people(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_bytes_are_formatted_for_people() -> None:
    assert (size(1500), size(2.5e6)) == ("1.5 kB", "2.50 MB")
