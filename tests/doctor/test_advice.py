"""Advice, from measurements made by hand."""

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
from celu.doctor.measurement import Measured, Way
from celu.errors import CertificateError
from celu.transport.wire import HEADER
from doctor.clinic import case_of, make_job, warned

# 300 Mbps, 40 ms there and back, nothing wrong with it.
WAY = Way(mbps=300, duplex_mbps=300, parcel_bytes=3_750_000, parcel_s=0.14, rested_s=0.14)
LINE = Measured(0.040, 0.041, 0.0005, 0.0, 0.02, WAY, WAY)
LAN = replace(
    LINE,
    rtt_min_s=0.0003,
    rtt_median_s=0.0004,
    to_host=replace(WAY, mbps=900, duplex_mbps=880, parcel_s=0.04, rested_s=0.04),
    to_guest=replace(WAY, mbps=900, duplex_mbps=880, parcel_s=0.04, rested_s=0.04),
)
FILLED = make_job(method={"depth": 4}, batch_size=8192, codec="int8")
KERNEL = Machine("bbr", (4096, 131072, 33554432), (4096, 16384, 4194304), True)


def line(**changes: Any) -> Measured:
    return replace(LINE, **changes)


def way(**changes: Any) -> Measured:
    """The line with its way to the host changed."""
    return replace(LINE, to_host=replace(WAY, **changes))


def the_case(measured: Measured = LINE, job: celu.Job = FILLED, **more: Any) -> LinkFacts:
    return case_of(measured, job, **{"machine": KERNEL, **more})


def test_a_line_that_is_well_gets_no_warning_and_every_rule_has_its_say() -> None:
    assert warned(the_case()) == {}
    assert {finding.what for finding in advise(the_case())} == {
        *("contract", "versions", "security", "clocks", "latency", "bandwidth", "buffers"),
        *("congestion", "idle", "round", "depth", "codec"),
    }


def test_on_a_lan_nothing_is_to_be_tuned() -> None:
    job = make_job()
    assert warned(the_case(LAN, job)) == {}
    words = " ".join(finding.words for finding in advise(the_case(LAN, job)))
    assert "the line is not what a run will wait for" in words


@pytest.mark.parametrize("connects", [True, False])
def test_a_small_window_is_told_to_the_side_that_connects(connects: bool) -> None:
    found = warned(the_case(way(mbps=13.1, duplex_mbps=13.1), connects=connects))
    advice = found["gateway"]
    assert "to host 13.1 Mbps" in advice.words and "64 KiB" in advice.words
    assert ("our party.toml" if connects else "host's party.toml") in advice.change
    assert "streams = 32" in advice.change and 'carrier = "websocket"' in advice.change


@pytest.mark.parametrize("mbps", [300.0, 40.0, 5.0])
def test_other_rates_are_not_taken_for_a_window(mbps: float) -> None:
    assert "gateway" not in warned(the_case(way(mbps=mbps, duplex_mbps=mbps)))


def test_near_by_no_window_is_suspected() -> None:
    near = line(rtt_min_s=0.0005, to_host=replace(WAY, mbps=1000, duplex_mbps=1000))
    assert "gateway" not in warned(the_case(near))


def test_a_rest_that_costs_is_answered_with_the_kernels_setting_or_with_depth() -> None:
    rested = way(rested_s=0.7)
    assert "slow_start_after_idle=0, here" in warned(the_case(rested))["idle"].change
    already = replace(KERNEL, slow_start_after_idle=False)
    advice = warned(the_case(rested, machine=already))["idle"]
    assert "sysctl" not in advice.change and "depth" in advice.change
    theirs = the_case(rested, machine=already, name="host", peer="guest", role="host")
    assert "slow_start_after_idle=0, at guest" in warned(theirs)["idle"].change


def test_a_rest_that_costs_less_than_a_trip_is_not_complained_of() -> None:
    assert "idle" not in warned(the_case(way(parcel_s=0.01, rested_s=0.03)))


def test_buffers_below_what_is_in_flight_get_the_line_to_type() -> None:
    long = line(rtt_median_s=0.1, rtt_min_s=0.1)  # 3.75 MB in flight
    advice = warned(the_case(long))["buffers"]
    assert advice.change == 'sysctl -w net.ipv4.tcp_wmem="4096 16384 16777216", here.'
    far = replace(long, rtt_median_s=0.5)
    changes = [f.change for f in advise(the_case(far)) if f.what == "buffers"]
    assert changes == [
        'sysctl -w net.ipv4.tcp_wmem="4096 16384 134217728", here.',
        'sysctl -w net.ipv4.tcp_rmem="4096 131072 134217728", here.',
    ]


def test_a_system_that_says_nothing_of_its_kernel_is_not_advised_on_it() -> None:
    kinds = {finding.what for finding in advise(the_case(machine=Machine()))}
    assert not kinds & {"buffers", "congestion"}


def test_cubic_on_a_long_line_gets_a_word_but_no_warning() -> None:
    cubic = replace(KERNEL, congestion_control="cubic")
    (found,) = [f for f in advise(the_case(machine=cubic)) if f.what == "congestion"]
    assert found.level == "ok" and "tcp_congestion_control=bbr" in found.change
    (found,) = [f for f in advise(the_case(LAN, machine=cubic)) if f.what == "congestion"]
    assert not found.change


def test_ways_that_share_a_line_are_told() -> None:
    advice = warned(the_case(way(duplex_mbps=150)))["bandwidth"]
    assert "50% of it" in advice.words and "codec" in advice.change


def test_jitter_counts_where_one_round_is_in_flight() -> None:
    shaky = line(jitter_s=0.02)
    assert "depth = 2" in warned(the_case(shaky, make_job()))["latency"].change
    assert "latency" not in warned(the_case(shaky))


@pytest.mark.parametrize(("ahead_s", "role"), [(2.5, "guest"), (-2.5, "host")])
def test_a_clock_is_ahead_or_behind_as_seen_from_here(ahead_s: float, role: str) -> None:
    peer = "host" if role == "guest" else "guest"
    case = the_case(line(clock_s=ahead_s), name=role and "us", peer=peer, role=role)
    assert "is 2.50 s ahead of ours" in warned(case)["clocks"].words
    assert "clocks" not in warned(the_case(line(clock_s=2.5, clock_error_s=2.0)))


def test_every_field_that_differs_is_a_finding() -> None:
    case = the_case(differing=["seed: guest has 1, host has 2", "rounds: guest has 5, host has 6"])
    found = [f.words for f in advise(case) if f.what == "contract"]
    assert found == case.differing
    assert "celu run refuses" in warned(case)["contract"].change


def test_another_release_is_warned_of_and_another_python_named() -> None:
    case = the_case()
    other = {**case.versions, "celu": "0.0.1", "python": "3.99"}
    found = {f.words: f.level for f in advise(replace(case, peer_versions=other))}
    assert any("0.0.1 at host" in words and level == "warn" for words, level in found.items())
    assert any("3.99 at host" in words and level == "ok" for words, level in found.items())


def test_certificates_that_run_out_are_told_whose_to_renew() -> None:
    soon = [
        Certificate("guest", "CN=guest", "2030-01-01", 12.0),
        Certificate("authority of host", "CN=host", "2030-01-01", 29.9),
    ]
    found = [f for f in advise(the_case(certificates=soon)) if f.what == "certificate"]
    assert [f.level for f in found] == ["warn", "warn"]
    assert "celu certs party guest" in found[0].change and "Ask host" in found[1].change
    later = [replace(c, days_left=31.0) for c in soon]
    assert "certificate" not in warned(the_case(certificates=later))


def test_insecure_and_emulated_links_are_called_so() -> None:
    found = warned(the_case(insecure=True, emulated=True))
    assert "insecure = true" in found["security"].change
    assert "remove link" in found["line"].change


def test_certificates_are_read_as_they_were_made(tmp_path: Path) -> None:
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


def test_the_kernels_settings_are_read_where_there_are_any(tmp_path: Path) -> None:
    assert this_machine(tmp_path) == Machine()
    (tmp_path / "tcp_congestion_control").write_text("cubic\n")
    (tmp_path / "tcp_rmem").write_text("4096\t131072\t6291456\n")
    (tmp_path / "tcp_wmem").write_text("odd\n")
    (tmp_path / "tcp_slow_start_after_idle").write_text("1\n")
    assert this_machine(tmp_path) == Machine("cubic", (4096, 131072, 6291456), None, True)


def test_a_round_is_foreseen_from_bytes_and_trips() -> None:
    found = the_case(LINE, make_job(batch_size=4096)).forecast
    assert found.to_guest_bytes == HEADER.size + 4096 * 64 * 4
    alone_s = found.to_guest_bytes * 8 / 300e6
    assert found.serial_s == pytest.approx(0.041 + 2 * alone_s)
    assert found.full_s == pytest.approx(alone_s)
    assert found.depth == 4  # 97 ms against 28
    assert found.seconds(2) == pytest.approx(found.serial_s / 2)
    assert found.seconds(9) == found.full_s


def test_the_mildest_codec_that_makes_the_difference_is_advised() -> None:
    heavy = warned(the_case(LINE, make_job(batch_size=65536)))["codec"]
    assert 'codec = "int8"' in heavy.change and "with bf16" in heavy.words
    middling = warned(the_case(LINE, make_job(batch_size=4096)))["codec"]
    assert 'codec = "bf16"' in middling.change
    assert "codec" not in warned(the_case(LINE, make_job(batch_size=512)))
    assert "codec" not in warned(the_case(LINE, make_job(batch_size=65536, codec="int8")))


def test_rounds_in_flight_are_advised_where_the_line_idles() -> None:
    advice = warned(the_case(LINE, make_job()))["depth"]
    assert "Set depth = 4" in advice.change and "(8 fill it)" in advice.words
    assert "depth" not in warned(the_case(LINE, make_job(method={"depth": 4})))
    assert not warned(the_case(LINE, make_job(method="auto"))).keys() & {"depth", "codec"}


def test_a_codec_each_way_is_called_by_both_names() -> None:
    job = make_job(codec={"activation": "int8", "derivative": "bf16"})
    found = the_case(LINE, job).forecast
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
def test_seconds_read_well(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_bytes_read_well() -> None:
    assert (size(1500), size(2.5e6)) == ("1.5 kB", "2.50 MB")
