"""Codec, depth and the number of local steps follow from measured costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celu.config.job import Codecs, Tuning
from celu.engine.cost_model import Costs
from celu.engine.link_tuning import LinkTuner
from celu.engine.plan import first_stage
from celu.engine.schedule import Segment
from outcomes import FAST, SLOW, auto_job, outcome, schedule

# For manual computations: messages have 1,000 bytes and a byte takes 0.1 ms, 100 ms per round.
COSTS = Costs(
    up_byte_s=1e-4,
    down_byte_s=1e-4,
    round_trip_s=0.04,
    guest_s=0.010,
    host_s=0.020,
    guest_step_s=0.008,
    host_step_s=0.016,
)


def test_a_round_takes_as_long_as_the_slowest_of_link_and_parties() -> None:
    assert COSTS.round_s(1000, 1000) == pytest.approx(0.1)
    assert COSTS.round_s(50, 50) == pytest.approx(0.02)
    assert COSTS.round_s(50, 50, (1, 4)) == pytest.approx(0.02 + 3 * 0.016)
    assert COSTS.round_s(50, 50, (11, 1)) == pytest.approx(0.01 + 10 * 0.008)


def test_depth_covers_the_latency_of_a_round() -> None:
    # 40 ms round trip, 100 ms each way, 20 ms at the host, and a round until the guest is free.
    assert COSTS.depth(1000, 1000) == 4  # 360 ms, rounds of 100 ms
    # A round may take a tenth longer, so that less is stale: 1,320 ms in rounds of 110 ms.
    assert replace(COSTS, round_trip_s=1.0).depth(1000, 1000) == 12


def test_depth_is_lower_if_local_steps_make_a_round_longer() -> None:
    far = replace(COSTS, round_trip_s=1.0)
    # 1030 ms of latency: rounds take 20 ms without local steps, and 100 ms with five at the host.
    assert far.depth(50, 50) == 48
    assert far.depth(50, 50, (1, 6)) == 11


def test_local_steps_may_make_a_round_longer_by_a_factor() -> None:
    assert COSTS.max_steps(1000, 1000, 1.0) == (1 + 11, 1 + 5)
    assert COSTS.max_steps(1000, 1000, 1.75) == (1 + 20, 1 + 9)  # 175 ms
    assert COSTS.max_steps(50, 50, 1.0) == (2, 1)
    assert COSTS.max_steps(50, 50, 1.75) == (1 + 3, 1)  # 35 ms: 25 and 15 are left


def test_a_round_trip_that_has_become_longer_is_measured_again() -> None:
    # 100 ms on the link per round; with 4 rounds in flight 4 rounds take 400 ms, if nobody waits.
    four = Segment(20, 60, Tuning(W=5, R=1, depth=4, codec="2bit"))
    measured = replace(
        outcome(four, byte_s=COSTS.up_byte_s), hosts=outcome(four, byte_s=COSTS.down_byte_s).hosts
    )
    same = COSTS.updated(replace(measured, cycle_s=0.45), 1000, 1000)
    assert same.round_trip_s == COSTS.round_trip_s
    # One round trip, two messages and an exchange at both parties in 1,100 ms: 870, 200 and 30.
    longer = COSTS.updated(replace(measured, cycle_s=1.1), 1000, 1000)
    assert longer.round_trip_s == pytest.approx(0.87)
    assert longer.depth(1000, 1000) == 11


def test_a_party_that_is_busy_all_the_time_is_not_taken_for_a_longer_round_trip() -> None:
    many = Segment(20, 60, Tuning(W=5, R=20, depth=4, codec="2bit"))
    busy = outcome(many, byte_s=FAST)  # the host's local steps take 304 ms per round
    assert busy.cycle_s > 1.2
    assert COSTS.updated(busy, 1000, 1000).round_trip_s == COSTS.round_trip_s


def test_the_first_segment_shows_the_round_trip_unless_nobody_waits() -> None:
    def first(depth: int, byte_s: float) -> Costs:
        segment = Segment(0, 16, Tuning(W=5, R=3, depth=depth, codec="2bit"))
        return Costs.from_outcome(outcome(segment, byte_s=byte_s), 896, 896)

    for depth in (1, 2):  # over a fast link 70 ms from one Z to the next one that depends on it
        assert first(depth, FAST).round_trip_s == pytest.approx(0.04, abs=1e-5)
    saturated = first(6, SLOW)  # 90 ms per round on the link
    assert saturated.round_trip_s > 0.04  # what is known is only that 6 rounds are enough
    assert saturated.depth(896, 896) == 6


def tuner(byte_s: float, **job: str) -> LinkTuner:
    made = LinkTuner(auto_job(**job))
    made.measure(outcome(first_stage(auto_job(**job), schedule()).segment, byte_s=byte_s))
    return made


def segment(tuning: Tuning, start: int = 4) -> Segment:
    return Segment(start, start + 44, tuning)


@pytest.mark.parametrize(
    ("byte_s", "codec", "evaluation"),
    [
        (FAST, "fp32", "fp32"),
        (4e-6, "bf16", "bf16"),
        (9e-6, "int8", "int8"),
        (1.4e-5, "4bit", "int8"),
        (SLOW, "2bit", "int8"),
    ],
)
def test_it_chooses_the_most_exact_codec_that_does_not_slow_down_a_round(
    byte_s: float, codec: str, evaluation: str
) -> None:
    # [32, 64] is 8192, 4096, 2304 and 1408 bytes; the host takes 20 ms per round.
    tuning = tuner(byte_s).tuning((1, 1))
    assert tuning.codecs == Codecs(activation=codec, derivative=codec, evaluation=evaluation)


def test_caution_lowers_the_depth_and_forbids_the_smallest_codecs() -> None:
    made = tuner(SLOW)
    bold, one, two = (made.tuning((1, 1), caution) for caution in range(3))
    assert [t.codecs.activation for t in (bold, one, two)] == ["2bit", "4bit", "int8"]
    # 4 bits take 141 ms each way, so the latency is 342 ms and a round 141 ms: 2/3 of depth 4.
    assert one.depth == 3 and two.depth == 1
    assert bold.depth == 4


def test_caution_leaves_a_codec_that_is_exact_anyway() -> None:
    made = tuner(FAST)
    assert {made.tuning((1, 1), caution).codecs.activation for caution in range(3)} == {"fp32"}
    assert [made.tuning((1, 1), caution).depth for caution in range(3)] == [4, 3, 1]


def test_local_steps_are_limited_by_their_time_and_not_below_none() -> None:
    # Over a fast link a round takes the host's 20 ms. A step of the guest fits in, and a second one
    # makes the round 26 ms long; a step of the host would make it 36 ms long, more than 35.
    made = tuner(FAST)
    made.measure(outcome(segment(Tuning(W=5, R=2, depth=2, codec="fp32")), byte_s=FAST))
    tuning = made.tuning((5, 5))
    assert (tuning.for_role("guest")[1], tuning.for_role("host")[1]) == (3, 1)
    slow = tuner(SLOW).tuning((5, 5))
    assert (slow.for_role("guest")[1], slow.for_role("host")[1]) == (5, 5)


def test_the_depth_of_a_tuning_accounts_for_its_local_steps() -> None:
    made = tuner(4e-6)
    assert made.tuning((5, 5)).depth <= made.tuning((1, 1)).depth
    made.measure(outcome(segment(Tuning(W=5, R=3, depth=2, codec="bf16")), byte_s=FAST))
    without, with_steps = made.tuning((1, 1)), made.tuning((3, 1))
    assert with_steps.for_role("guest")[1] == 3
    assert (without.depth, with_steps.depth) == (4, 3)  # rounds of 20 and 26 ms


def test_a_codec_that_was_measured_on_a_slow_link_is_used_again_on_a_faster_one() -> None:
    made = tuner(SLOW)
    int8, small = (Tuning(W=5, R=1, depth=4, codec=name) for name in ("int8", "4bit"))
    made.measure(outcome(segment(int8), byte_s=SLOW))
    assert made.tuning((1, 1)).codecs.activation == "2bit"
    made.measure(outcome(segment(small, 48), byte_s=9e-6))
    assert made.tuning((1, 1)).codecs.activation == "int8"


def test_too_few_measured_rounds_do_not_change_the_costs() -> None:
    made = tuner(SLOW)
    before = made.tuning((1, 1))
    made.measure(outcome(Segment(4, 6, before), byte_s=FAST))
    assert made.tuning((1, 1)) == before
    made.measure(outcome(Segment(6, 26, before), byte_s=FAST))
    assert made.tuning((1, 1)).codecs.activation == "fp32"


def test_a_fixed_codec_is_not_changed() -> None:
    assert {tuner(SLOW, codec="bf16").tuning((3, 1), c).codecs.activation for c in range(3)} == {
        "bf16"
    }
