"""Virtual time: how long a run would take on a link, without waiting for it."""

from __future__ import annotations

import copy
import time

import pytest

import celu
from celu.config.link import PROFILES, LinkSettings
from celu.transport.emulation import LinkEmulator
from celu.transport.virtual_clock import VirtualClock
from federation import assert_same_bits, federation, train_in_memory

FAST = 1e6  # computing takes almost no time, so the seconds are those of the link


class ManualTimer:
    """A timer that the test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def test_a_clock_runs_while_its_party_computes_and_jumps_when_it_waits() -> None:
    timer = ManualTimer()
    clock = VirtualClock(timer=timer)
    with clock.running():
        timer.at = 2.0
        assert clock.now() == 2.0
    timer.at = 9.0
    assert clock.now() == 2.0, "the clock stands still while other parties compute"
    with clock.running():
        clock.wait_until(5.0)
        timer.at = 10.0
        assert clock.now() == 6.0
        clock.wait_until(1.0)
        assert clock.now() == 6.0, "a time in the past needs no waiting"


def test_a_faster_party_takes_less_time() -> None:
    timer = ManualTimer()
    clock = VirtualClock(speed=4.0, timer=timer)
    with clock.running():
        timer.at = 2.0
        assert clock.now() == 0.5


def test_an_emulated_link_has_the_arrival_times_of_a_real_link() -> None:
    emulator = LinkEmulator.from_settings(LinkSettings(mbps=8.0, delay_ms=500.0))
    # A megabyte of payload, 52 bytes of headers in every packet of 1500, acknowledgements, and 2%
    # of the time in which TCP almost stops.
    assert emulator.arrival(1_000_000, 0.0) == pytest.approx(0.5 + 1526 / 1448 / 0.98)
    emulator = LinkEmulator(mbps=8.0, delay_s=0.5)
    assert emulator.arrival(1_000_000, 0.0) == 1.5
    assert emulator.arrival(1_000_000, 0.0) == 2.5, "it queues behind the first"
    assert emulator.arrival(1_000_000, 10.0) == 11.5, "the link was idle again"


def test_jitter_delays_at_random_and_never_reorders() -> None:
    link = LinkSettings(mbps=800.0, delay_ms=10.0, jitter_ms=50.0)
    late = [LinkEmulator.from_settings(link, seed).arrival(1000, 0.0) for seed in range(200)]
    assert 0.01 < min(late) < 0.02 and 0.05 < max(late) < 0.0601
    emulator = LinkEmulator.from_settings(link, 3)
    arrivals = [emulator.arrival(1000, 0.001 * i) for i in range(300)]
    assert arrivals == sorted(arrivals)
    again = LinkEmulator.from_settings(link, 3)
    assert arrivals == [again.arrival(1000, 0.001 * i) for i in range(300)]


def test_an_outage_delays_messages_and_loses_none() -> None:
    # Up for 8 of every 10 s; a megabyte takes one.
    emulator = LinkEmulator(mbps=8.0, outage_every_s=10.0, outage_s=2.0)
    arrivals = [emulator.arrival(1_000_000, 0.0) for _ in range(17)]
    assert arrivals == [*map(float, range(1, 9)), *map(float, range(11, 19)), 21.0]
    long = LinkEmulator(mbps=8.0, outage_every_s=10.0, outage_s=2.0)
    assert long.arrival(20_000_000, 0.0) == 24.0, "two outages during the transfer"
    late = LinkEmulator(mbps=8.0, outage_every_s=10.0, outage_s=2.0)
    late.arrival(0, 0.0)
    assert late.arrival(1_000_000, 9.0) == 11.0, "sent during an outage"


def test_a_link_profile_is_found_by_name() -> None:
    assert celu.find_link("wan-300") == LinkSettings(mbps=300.0, delay_ms=20.0)
    with pytest.raises(celu.CeluError, match="wan-300, wan-100, lte, lan, got 'isdn'"):
        celu.find_link("isdn")
    assert all(link.mbps > 0 for link in PROFILES.values())


def test_a_slower_link_changes_the_seconds_but_not_the_bits() -> None:
    fed = federation(method=celu.Method(R=1), hosts={"host": 64})
    exact = train_in_memory(fed)
    seconds = {}
    for mbps in (1.0, 10.0):
        run = copy.deepcopy(fed)
        result = celu.simulate(
            run.job,
            run.guest,
            run.hosts,
            link=LinkSettings(mbps=mbps, delay_ms=10.0),
            speed=FAST,
        )
        assert_same_bits(run.weights(), exact)
        seconds[mbps] = result.evaluations[-1]["seconds"]
    # Z, then dZ, in each of 14 rounds, and Z of six test batches in each of 3 evaluations.
    rounds, evaluations, message_bits = 14, 3, 32 * 64 * 4 * 8
    for mbps, found in seconds.items():
        sending = (2 * rounds + 6 * evaluations) * message_bits / (mbps * 1e6)
        lower_bound = sending + (2 * rounds + evaluations) * 0.01
        assert lower_bound < found < lower_bound * 1.15  # headers and handshakes


def test_a_simulation_does_not_wait_for_virtual_time() -> None:
    fed = federation(hosts={"host": 64})
    started = time.perf_counter()
    result = celu.simulate(
        fed.job, fed.guest, fed.hosts, link=LinkSettings(mbps=0.0001, delay_ms=500_000.0)
    )
    elapsed = time.perf_counter() - started
    assert result.evaluations[-1]["seconds"] > 10_000
    assert elapsed < 3600


def test_rounds_in_flight_hide_the_delay() -> None:
    seconds = []
    for depth in (1, 4):
        fed = federation(
            method=celu.Method(R=1, depth=depth),
            evaluation=celu.Evaluation(every=14, metric="loss", rows=32),
        )
        result = celu.simulate(
            fed.job,
            fed.guest,
            fed.hosts,
            link=LinkSettings(mbps=1000.0, delay_ms=1000.0),
            speed=FAST,
        )
        seconds.append(result.evaluations[-1]["seconds"])
    assert seconds[0] == pytest.approx(14 * 2 + 1, rel=0.15)
    assert seconds[1] < 0.4 * seconds[0]
