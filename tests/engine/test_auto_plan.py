"""What `method = "auto"` chooses from the outcomes of segments."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celu.engine.auto import AutoPlan
from celu.engine.plan import MAX_ATTEMPTS, HostPlan, Stage
from celu.errors import CheckpointError
from celu.models.losses import ConstantLoss
from outcomes import (
    FAST,
    SLOW,
    auto_job,
    auto_plan,
    falling,
    outcome,
    pair,
    rises_from,
    run_plan,
    run_stage,
    schedule,
)

BOTH, GUEST_ONLY, NO_STEPS = (5, 5), (3, 1), (1, 1)
MEASURING = (3, 3)  # using batches again shows how much is still to be done
FROM_ZERO, FROM_MORE = ({"optimizer": {"initial_accumulator": a}} for a in (0.0, 0.1))


def starts(stages: list[Stage]) -> list[int]:
    return [stage.segment.start for stage in stages]


def pairs(stages: list[Stage]) -> list[tuple[int, int]]:
    return [pair(stage.segment) for stage in stages]


def rolled_back(stages: list[Stage]) -> list[Stage]:
    return [stage for stage in stages if stage.restore is not None]


# Local steps.


@pytest.mark.parametrize(
    ("optimizer", "weight", "chosen"),
    [
        (FROM_MORE, 0.88, BOTH),
        (FROM_MORE, 1.4, BOTH),
        (FROM_MORE, 0.8799, GUEST_ONLY),
        (FROM_ZERO, 0.976, BOTH),
        (FROM_ZERO, 0.9759, GUEST_ONLY),
        ({"optimizer": {"name": "adam"}}, 0.9759, GUEST_ONLY),
        ({"optimizer": {"name": "sgd"}}, 0.9759, BOTH),
    ],
)
def test_both_parties_repeat_batches_if_nearly_all_of_a_derivative_is_still_to_be_done(
    optimizer: dict[str, Any], weight: float, chosen: tuple[int, int]
) -> None:
    plan = auto_plan(**optimizer)
    stages = run_plan(plan, weight=lambda stage: 1.0 if stage.segment.start else weight)
    measuring, *later = stages
    assert pair(measuring.segment) == MEASURING
    assert set(pairs(later)) == {chosen}
    assert f"{weight:.1%} of a derivative is still to be done" in later[0].reason
    assert later[0].segment.start == (16 if chosen == BOTH else 0)
    # As if the hosts had never repeated a batch.
    assert [s.restore for s in later[:1]] == [None if chosen == BOTH else "base"]
    assert len(rolled_back(stages)) == (chosen == GUEST_ONLY)


def test_it_decides_again_after_every_stage_in_which_hosts_repeat_batches() -> None:
    plan = auto_plan(**FROM_ZERO)
    stages = run_plan(plan, weight=lambda stage: 0.97 if stage.segment.start == 72 else 0.98)
    assert pairs(stages)[:3] == [MEASURING, BOTH, BOTH]
    assert set(pairs(stages[3:])) == {GUEST_ONLY}
    assert not rolled_back(stages)


def test_the_mean_of_all_hosts_decides() -> None:
    for weights, chosen in [((1.0, 0.8), BOTH), ((1.0, 0.7), GUEST_ONLY), ((0.99, 0.0), BOTH)]:
        plan = auto_plan(**FROM_MORE)
        stage = plan.next(outcome(plan.first().segment, *weights))
        assert stage is not None and pair(stage.segment) == chosen


def test_without_a_weight_only_the_guest_repeats_batches() -> None:
    stages = run_plan(auto_plan(method={"weighting": "none"}), weight=lambda _: 0.0)
    assert set(pairs(stages[1:])) == {GUEST_ONLY}
    assert "only the guest repeats" in stages[1].reason


def test_the_guests_local_steps_end_with_the_first_epoch() -> None:
    # A stage would end at round 288, too shortly before the epoch does.
    stages = run_plan(auto_plan(**FROM_ZERO, rounds_per_epoch=317), weight=lambda _: 0.5)
    by_start = dict(zip(starts(stages), pairs(stages), strict=True))
    assert {start: by_start[start] for start in (0, 72, 317)} == {
        0: GUEST_ONLY, 72: GUEST_ONLY, 317: NO_STEPS}  # fmt: skip
    assert 288 not in by_start and by_start[max(by_start)] == NO_STEPS
    assert "the next epoch repeats every row: no local steps" in {s.reason for s in stages}


def test_held_out_scores_that_no_longer_improve_end_local_steps_after_the_first_epoch() -> None:
    def falls(stage: Stage) -> list[float]:
        return [0.8 - 1e-4 * stage.segment.stop]

    plan = auto_plan(rounds_per_epoch=384)
    stages = run_plan(plan, weight=lambda _: 1.0, score=falls)
    by_start = dict(zip(starts(stages), pairs(stages), strict=True))
    assert by_start == {0: MEASURING, 16: BOTH, 72: BOTH, 288: BOTH, 384: BOTH, 768: (1, 1),
                        1536: (1, 1)}  # fmt: skip
    assert stages[-2].reason == "validation scores no longer improve: no local steps"
    assert stages[-1].reason == "unchanged"


@pytest.mark.parametrize("slope", [0.0, 1e-4])
def test_scores_that_are_as_good_as_before_do_not_end_local_steps(slope: float) -> None:
    plan = auto_plan(rounds_per_epoch=384)
    score = lambda stage: [0.7 + slope * stage.segment.stop]  # noqa: E731
    assert pairs(run_plan(plan, weight=lambda _: 1.0, score=score))[-1] == BOTH


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_ignored(value: float) -> None:
    def scores(stage: Stage) -> list[float]:
        return [value, 0.7 + 1e-4 * stage.segment.stop, value]

    plan = auto_plan(rounds_per_epoch=384)
    assert pairs(run_plan(plan, weight=lambda _: 1.0, score=scores))[-1] == BOTH
    assert all(math.isfinite(x) for o in plan.state_dict(2000)["outcomes"] for x in o["scores"])
    only = auto_plan(rounds_per_epoch=384)
    run_plan(only, score=lambda _: [value])
    assert not any(o["scores"] for o in only.state_dict(2000)["outcomes"])


# Caution.


EARLY = pytest.mark.parametrize("rise", [8, 40], ids=["while measuring", "in the second stage"])


@EARLY
def test_a_loss_that_explodes_early_is_rolled_back_and_repeated_with_gentler_settings(
    rise: int,
) -> None:
    def loss(stage: Stage, round_: int) -> float:
        return 50.0 if round_ >= rise and stage.segment.tuning.depth > 1 else falling(stage, round_)

    plan = auto_plan()
    stages = run_plan(plan, weight=lambda _: 1.0, loss=loss)
    bold = stages[0].segment.tuning
    one, two = rolled_back(stages)
    assert starts([one, two]) == [0, 0]
    assert pairs([one, two]) == [NO_STEPS, NO_STEPS]
    assert bold.depth > 2 and bold.codecs.activation == "2bit"
    assert one.segment.tuning.depth < bold.depth
    assert one.segment.tuning.codecs.activation == "4bit"
    assert (two.segment.tuning.depth, two.segment.tuning.codecs.activation) == (1, "int8")
    assert [s.reason.split("; per round")[0] for s in (one, two)] == [
        "the loss has exploded: no local steps and fewer rounds in flight; rolled back",
        "the loss has exploded: one round in flight; rolled back",
    ]
    assert [c.round for c in plan.choices] == sorted({c.round for c in plan.choices})
    assert set(pairs(stages[stages.index(one) :])) == {NO_STEPS}


def test_if_nothing_gentler_is_left_the_run_continues() -> None:
    stages = run_plan(auto_plan(), weight=lambda _: 1.0, loss=rises_from(30, to=5.0))
    assert len(rolled_back(stages)) == 2
    assert stages[-1].segment.stop == 2000


CONSTANT = ConstantLoss(0.6, 0.02)  # two standard errors of 16 batches are 0.01


@pytest.mark.parametrize(("level", "num_rolled_back"), [(0.609, 0), (0.611, 1)])
def test_a_loss_above_that_of_a_constant_prediction_is_rolled_back_once(
    level: float, num_rolled_back: int
) -> None:
    def loss(stage: Stage, round_: int) -> float:
        return 0.59 if 24 <= round_ < 48 else level + 0.03 * (-1) ** round_

    stages = run_plan(auto_plan(constant_loss=CONSTANT), weight=lambda _: 1.0, loss=loss)
    assert starts(stages)[:2] == [0, 16]  # a loss may be high while it is measured
    assert len(rolled_back(stages)) == num_rolled_back
    for stage in rolled_back(stages):
        assert stage.reason.startswith(
            "the loss is above that of a constant prediction and does not fall: no local steps and "
            "fewer rounds in flight; rolled back; per round"
        )
        assert set(pairs(stages[stages.index(stage) :])) == {NO_STEPS}


def test_a_loss_of_the_users_own_is_compared_with_the_first_batches() -> None:
    for later, num_rolled_back in ((0.5, 0), (0.69, 0), (0.9, 1)):
        loss = rises_from(40, to=later)
        stages = run_plan(auto_plan(), weight=lambda _: 1.0, loss=loss)
        assert len(rolled_back(stages)) == num_rolled_back


def test_a_loss_that_explodes_and_then_stays_where_nothing_is_learned_is_rolled_back() -> None:
    def loss(stage: Stage, round_: int) -> float:
        if pair(stage.segment) == NO_STEPS or round_ < 24:
            return falling(stage, round_)
        return 5.0 if round_ < 28 else 0.701  # hardly higher than before

    stages = run_plan(auto_plan(), weight=lambda _: 1.0, loss=loss)
    assert len(rolled_back(stages)) == 1


def spikes(stage: Stage, round_: int) -> float:
    """A loss that is high for a few rounds in the beginning, and recovers."""
    return 5.0 if 8 <= round_ < 12 else 0.6 - 1e-3 * round_


@pytest.mark.parametrize(
    "loss",
    [
        falling,
        lambda stage, round_: (
            falling(stage, round_) if stage.segment.stop == 16 else spikes(stage, round_)
        ),
        lambda stage, round_: 0.5,
        lambda stage, round_: 0.9 - 2e-4 * round_,  # slowly, above a constant prediction
        lambda stage, round_: 0.5 + 0.2 * (-1) ** round_,
        lambda stage, round_: 100 * 0.9**round_,  # a squared error may fall a lot
        lambda stage, round_: -1.0 - round_,  # a likelihood of densities may be negative
    ],
)
def test_a_loss_that_falls_or_stays_is_not_rolled_back(
    loss: Callable[[Stage, int], float],
) -> None:
    for constant in (None, CONSTANT):
        plan = auto_plan(constant_loss=constant)
        assert not rolled_back(run_plan(plan, weight=lambda _: 1.0, loss=loss))


def test_a_gentler_attempt_is_not_compared_with_the_losses_of_the_one_before() -> None:
    def loss(stage: Stage, round_: int) -> float:
        is_bold = pair(stage.segment) != NO_STEPS
        return (0.3 if round_ < 48 else 0.9) if is_bold else 0.7 - 1e-4 * round_

    stages = run_plan(auto_plan(), weight=lambda _: 1.0, loss=loss)
    assert len(rolled_back(stages)) == 1


def test_a_savepoint_is_held_during_the_first_rounds_only() -> None:
    stages = run_plan(auto_plan(), loss=rises_from(30))
    assert [(s.segment.start, s.save) for s in stages if s.save] == [(0, "base")]
    assert [s.drop_savepoints for s in stages] == [s.segment.start >= 72 for s in stages]


@pytest.mark.parametrize("level", [5.0, 0.75])
def test_later_trouble_lowers_the_settings_from_there_on(level: float) -> None:
    plan = auto_plan(constant_loss=CONSTANT)
    loss = lambda stage, round_: 0.55 if round_ < 200 else level  # noqa: E731
    stages = run_plan(plan, weight=lambda _: 1.0, loss=loss)
    assert not rolled_back(stages)
    assert starts(stages) == [0, 16, 72, 288, 1152]
    assert pairs(stages)[2:4] == [BOTH, NO_STEPS]
    assert ": no local steps and fewer rounds in flight" in stages[3].reason
    assert stages[3].segment.tuning.depth < stages[2].segment.tuning.depth


def test_stages_of_the_last_third_of_an_unsteady_run_have_one_round_in_flight() -> None:
    stages = run_plan(auto_plan(), weight=lambda _: 1.0, loss=rises_from(30, to=0.75))
    depths = {s.segment.start: s.segment.tuning.depth for s in stages}
    assert depths[288] > 1 and depths[1152] > 1  # 1,152 of 2,000 rounds are not two thirds yet
    steady = run_plan(auto_plan(), weight=lambda _: 1.0)
    assert steady[-1].segment.tuning.depth > 1
    longer = run_plan(auto_plan(1700), weight=lambda _: 1.0, loss=rises_from(30, to=0.75))
    assert longer[-1].segment.start == 1152  # the first stage after two thirds of the rounds
    assert longer[-1].segment.tuning.depth == 1
    assert longer[-1].reason.startswith(
        "the last third of an unsteady run: one round in flight; per round"
    )


def test_when_the_start_is_over_more_rounds_are_in_flight_again() -> None:
    def loss(stage: Stage, round_: int) -> float:
        return (
            5.0 if 30 <= round_ < 96 and stage.segment.tuning.depth > 1 else falling(stage, round_)
        )

    stages = run_plan(auto_plan(), weight=lambda _: 1.0, loss=loss)
    depths = {s.segment.start: s.segment.tuning.depth for s in stages}
    assert depths[0] == depths[72] == 1
    assert depths[288] > 1
    again = next(stage for stage in stages if stage.segment.start == 288)
    assert again.reason.startswith("the loss no longer rises: more rounds in flight; per round")
    assert pair(again.segment) == NO_STEPS


# The contract, and the stages.

FIXED: dict[str, dict[str, Any]] = {
    "R": {"method": {"R": 4}},
    "depth": {"method": {"depth": 3}},
    "codec": {"codec": "bf16"},
    "R and depth": {"method": {"R": {"guest": 2, "host": 2}, "depth": 3}},
    "all": {"method": {"W": 5, "R": 2, "depth": 3}, "codec": "bf16"},
}


@pytest.mark.parametrize("fixed", FIXED)
def test_what_the_contract_fixes_stays_and_a_rising_loss_does_not_repeat_rounds_for_ever(
    fixed: str,
) -> None:
    plan = auto_plan(**FIXED[fixed])
    stages = run_plan(plan, weight=lambda _: 1.0, loss=rises_from(20, to=9.0))
    job = auto_job(**FIXED[fixed])
    for name in job.given():
        assert {str(dict(s.segment.tuning)[name]) for s in stages} == {
            str(dict(job.tuning())[name])
        }
    assert len(rolled_back(stages)) <= 2
    assert stages[-1].segment.stop == 2000
    if fixed == "all":
        assert not rolled_back(stages)
        assert {s.reason for s in stages[1:]} == {"unchanged"}


def test_the_reason_is_unchanged_exactly_if_the_tuning_is() -> None:
    for weight in (0.0, 0.5, 1.0):
        stages = run_plan(auto_plan(), weight=lambda _, weight=weight: weight)
        for before, stage in pairwise(stages):
            same = stage.segment.tuning == before.segment.tuning
            assert (stage.reason == "unchanged") == same


WHO = {
    (True, True): "all parties repeat batches",
    (True, False): "only the guest repeats batches",
    (False, True): "only the hosts repeat batches",
    (False, False): "no local steps",
}


@given(
    weights=st.lists(st.sampled_from([0.0, 0.5, 0.99, 1.2]), min_size=9, max_size=9),
    speeds=st.lists(st.sampled_from([SLOW, SLOW / 30, FAST]), min_size=9, max_size=9),
    rise=st.sampled_from([20, 60, 200, 10_000]),
    fixed=st.sampled_from([{}, *FIXED.values()]),
)
@settings(max_examples=40)
def test_a_reason_never_contradicts_the_tuning_and_explains_depth_and_codec(
    weights: list[float], speeds: list[float], rise: int, fixed: dict[str, Any]
) -> None:
    def at(values: list[float]) -> Callable[[Stage], float]:
        return lambda stage: values[min(8, stage.segment.start // 48)]

    loss = rises_from(rise, to=5.0)
    stages = run_plan(auto_plan(**fixed), weight=at(weights), byte_s=at(speeds), loss=loss)
    for before, stage in pairwise(stages):
        old, new = before.segment.tuning, stage.segment.tuning
        steps = (pair(stage.segment)[0] > 1, pair(stage.segment)[1] > 1)
        said = {text for text in WHO.values() if text in stage.reason}
        assert said <= {WHO[steps]}
        if pair(before.segment) != pair(stage.segment):
            assert said
        for text, more in {"more rounds in flight": True, "fewer rounds in flight": False}.items():
            assert text not in stage.reason or (new.depth > old.depth) == more
        if (old.depth, old.codecs) != (new.depth, new.codecs):
            assert f": depth {new.depth}" in stage.reason


def test_where_a_round_has_no_time_for_local_steps_the_reason_says_so() -> None:
    plan = auto_plan()
    stages = run_plan(plan, weight=lambda _: 1.0, byte_s=lambda _: FAST)
    (stage,) = [stage for stage in stages if "100.0% of a derivative" in stage.reason][:1]
    assert pair(stage.segment) != BOTH
    assert "no time" in stage.reason and "all parties repeat" not in stage.reason


def test_a_link_that_becomes_faster_or_slower_is_measured_again() -> None:
    def byte_s(stage: Stage) -> float:
        return FAST if stage.segment.start in (72, 288) else SLOW

    stages = run_plan(auto_plan(rounds=8000), byte_s=byte_s)
    codecs = {s.segment.start: s.segment.tuning.codecs.activation for s in stages}
    early = dict.fromkeys((0, 72), "2bit")
    assert codecs == early | {288: "fp32", 1152: "fp32", 4608: "2bit"}


@pytest.mark.parametrize("epoch", [1, 6, 97, 100, 143, 144, 700])
def test_stages_end_with_epochs_and_are_long_enough_to_decide_by(epoch: int) -> None:
    stages = run_plan(auto_plan(rounds=5000, rounds_per_epoch=epoch), weight=lambda _: 1.0)
    assert starts(stages)[:3] == [0, 16, 72]
    for stage in stages[2:-1]:
        stop, length = stage.segment.stop, len(stage.segment.rounds)
        assert length >= 48
        assert stop == 4 * stage.segment.start or math.log2(stop / epoch).is_integer()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 700),
    st.integers(1, 400),
    st.sampled_from([{}, *FIXED.values()]),
    st.data(),
)
def test_whatever_the_outcomes_a_host_accepts_every_stage_and_the_run_ends(
    rounds: int, epoch: int, fixed: dict[str, Any], data: st.DataObject
) -> None:
    plan = auto_plan(rounds, epoch, **fixed)
    host = HostPlan(auto_job(rounds, **fixed), schedule(rounds, epoch))
    losses = st.floats(0, 1e6)
    stage, executed = plan.first(), 0
    assert host.first().segment == stage.segment
    while True:
        executed += len(stage.segment.rounds)
        level = data.draw(losses)
        _, next_ = run_stage(
            plan,
            stage,
            weight=lambda _: data.draw(st.floats(0, 2)),
            loss=lambda _, round_, last=stage.segment.stop, level=level: (
                level if round_ > last - 10 else 1.0
            ),
            score=lambda _: [data.draw(st.floats())],
            byte_s=lambda _: data.draw(st.sampled_from([FAST, SLOW, 1e-5])),
        )
        if next_ is None:
            break
        stage = next_
        followed = host.next({"next": json.loads(json.dumps(stage.to_body()))})
        assert replace(followed, reason=stage.reason) == stage
    assert stage.segment.stop == rounds
    assert executed <= MAX_ATTEMPTS * rounds


# Checkpoints.


def test_a_plan_that_resumes_after_any_round_makes_the_same_choices() -> None:
    def loss(stage: Stage, round_: int) -> float:
        bold = pair(stage.segment) != NO_STEPS
        return 1.0 if round_ >= 50 and bold else 0.7 - 1e-4 * round_ + 0.01 * (round_ % 3)

    how: dict[str, Any] = {
        "weight": lambda _: 0.99,
        "loss": loss,
        "score": lambda stage: [0.7, 0.6 - 1e-4 * stage.segment.stop],
    }
    undisturbed = auto_plan(600, 120)
    expected = run_plan(undisturbed, **how)
    assert rolled_back(expected)

    def resumed(state: str, round_: int, stage: Stage | None) -> AutoPlan:
        other = auto_plan(600, 120)
        assert other.load_state_dict(json.loads(state), round_) == stage
        assert json.dumps(other.state_dict(round_)) == state
        return other

    plan = auto_plan(600, 120)
    stages: list[Stage] = [plan.first()]
    current = [plan]
    while True:

        def restart(round_: int) -> AutoPlan:
            current[0] = resumed(json.dumps(current[0].state_dict(round_)), round_, stages[-1])
            return current[0]

        plan, stage = run_stage(current[0], stages[-1], after_round=restart, **how)
        stop = stages[-1].segment.stop
        current[0] = resumed(json.dumps(plan.state_dict(stop)), stop, stage)
        if stage is None:
            break
        stages.append(stage)
    assert stages == expected
    assert current[0].choices == undisturbed.choices
    assert current[0].state_dict(600) == undisturbed.state_dict(600)


def stored() -> dict[str, Any]:
    plan = auto_plan()
    run_stage(plan, plan.first(), score=lambda _: [0.5])
    state: dict[str, Any] = json.loads(json.dumps(plan.state_dict(16)))
    return state


CYCLES = ("cycle_s", "shortest_cycle_s")


def test_a_plans_checkpoint_has_these_keys() -> None:
    state = stored()
    assert set(state) == {"outcomes", "losses", "scores"}
    assert set(state["outcomes"][0]) == {"segment", "guest", "hosts", "losses", "scores", *CYCLES}
    assert set(state["outcomes"][0]["segment"]) == {"start", "stop", "tuning"}
    assert auto_plan().load_state_dict(state, 16) is not None


@pytest.mark.parametrize("change", [{"start": 1}, {"stop": 17}])
def test_a_plan_does_not_resume_from_an_outcome_of_another_segment(change: dict[str, Any]) -> None:
    state = stored()
    state["outcomes"][0]["segment"] |= change
    with pytest.raises(CheckpointError, match="chooses differently"):
        auto_plan().load_state_dict(state, 16)


def test_the_state_of_an_earlier_release_is_refused() -> None:
    for state in (None, [], stored()["outcomes"]):
        with pytest.raises(CheckpointError, match="no valid outcomes"):
            auto_plan().load_state_dict(state, 16)


def test_after_a_rollback_no_stage_ends_where_the_measuring_ended() -> None:
    stages = run_plan(auto_plan(rounds=100), weight=lambda stage: 0.5)
    ends = [(s.segment.start, s.segment.stop) for s in stages]
    assert ends == [(0, 16), (0, 72), (72, 100)]
