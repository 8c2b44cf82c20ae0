"""A host follows the guest's stages, within bounds on a stage and on the rounds of a run."""

from __future__ import annotations

from typing import Any

import pytest

from celu.config.job import Tuning
from celu.engine.plan import MAX_ATTEMPTS, HostPlan, first_stage
from celu.engine.schedule import Schedule, Segment
from celu.errors import CheckpointError, ProtocolError
from federation import federation

ROUNDS = 40
SCHEDULE = Schedule(ROUNDS, rounds_per_epoch=6, evaluate_every=50, test_rows=32, part_rows=32)


def host_plan() -> HostPlan:
    return HostPlan(federation(rounds=ROUNDS, method="auto").job, SCHEDULE)


def stage(start: int, stop: int, tuning: Any, **more: Any) -> dict[str, Any]:
    body = {"start": start, "stop": stop, "tuning": tuning, "save": None, "restore": None}
    return {"next": {**body, **more}}


def roll_back_for_ever(plan: HostPlan) -> int:
    """The rounds that a host executes for a guest that returns to one savepoint again and again."""
    first = plan.first().segment
    tuning = plan.first().to_body()["tuning"]
    executed = first.stop
    following = stage(first.stop, first.stop + 3, tuning, save="base")
    while executed < 100 * ROUNDS:
        try:
            plan.next(following)
        except ProtocolError as error:
            assert "at most 5 times the job's 40 rounds" in str(error)
            return executed
        executed += 3
        following = stage(first.stop, first.stop + 3, tuning, restore="base")
    return executed


def test_a_guest_cannot_keep_a_host_training_for_ever() -> None:
    assert roll_back_for_ever(host_plan()) <= MAX_ATTEMPTS * ROUNDS


def test_a_resumed_host_has_not_forgotten_how_many_rounds_it_executed() -> None:
    plan = host_plan()
    state = {**plan.state_dict(0), "executed": MAX_ATTEMPTS * ROUNDS}
    plan.load_state_dict(state, 0)
    assert plan.state_dict(0) == state
    tuning, stop = state["tuning"], state["stop"]
    with pytest.raises(ProtocolError, match="at most 5 times"):
        plan.next(stage(stop, stop + 1, tuning))


def test_a_checkpoint_without_the_count_is_resumed_and_a_wrong_count_is_refused() -> None:
    plan = host_plan()
    state = plan.state_dict(0)
    assert state.pop("executed") == plan.first().segment.stop
    assert host_plan().load_state_dict(state, 0) == plan.first()
    with pytest.raises(CheckpointError, match="executed rounds"):
        host_plan().load_state_dict({**state, "executed": "many"}, 0)


BODY = {
    "start": 16,
    "stop": 26,
    "tuning": {"W": 5, "R": 3, "depth": 4, "codec": "int8"},
    "save": None,
    "restore": None,
    "forget": False,
}


def test_the_first_stage_measures_in_two_bits_with_local_steps_and_can_be_rolled_back() -> None:
    first = host_plan().first()
    assert first == first_stage(federation(rounds=ROUNDS, method="auto").job, SCHEDULE)
    tuning = first.segment.tuning
    assert (first.segment.start, first.segment.stop, tuning.depth) == (0, 16, 4)
    assert first.save == "base"
    assert (tuning.codecs.activation, tuning.codecs.evaluation) == ("2bit", "int8")
    assert tuning.for_role("guest")[1] == tuning.for_role("host")[1] == 3


def test_a_host_follows_the_stages_that_the_guest_sends() -> None:
    plan = host_plan()
    found = plan.next({"next": BODY})
    assert found.segment == Segment(16, 26, Tuning(W=5, R=3, depth=4, codec="int8"))
    assert plan.next({"next": {**BODY, "start": 0, "restore": "base"}}).segment.start == 0
    plan.next({"next": {**BODY, "start": 26, "stop": 28, "forget": True}})
    with pytest.raises(ProtocolError, match=r"a savepoint of \{\}"):
        plan.next({"next": {**BODY, "restore": "base"}})


@pytest.mark.parametrize(
    "change",
    [
        {"start": 17},
        {"start": True},
        {"start": 16.0},
        {"stop": 16},
        {"stop": ROUNDS + 1},
        {"stop": 10.5},
        {"stop": None},
        {"restore": "base"},
        {"restore": "elsewhere"},
        {"restore": ["base"]},
        {"restore": {}},
        {"save": "elsewhere"},
        {"save": 3},
        {"tuning": {"W": 65, "R": 3, "depth": 4, "codec": "int8"}},
        {"tuning": {"W": 5, "R": 65, "depth": 4, "codec": "int8"}},
        {"tuning": {"W": 5, "R": 3, "depth": 65, "codec": "int8"}},
        {"tuning": {"W": 5, "R": 0, "depth": 4, "codec": "int8"}},
        {"tuning": {"W": 5, "R": 3, "depth": 4, "codec": "morse"}},
        {"tuning": {"W": 5, "R": 3, "depth": 4, "codec": 4}},
        {"tuning": {"W": 5, "R": 3, "codec": "int8"}},
        {"tuning": None},
    ],
    ids=str,
)
def test_a_host_refuses_a_stage_from_another_round_or_beyond_bounds(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="VERDICT"):
        host_plan().next({"next": {**BODY, **change}})


@pytest.mark.parametrize("verdict", [{}, {"next": None}, {"next": 3}, {"next": []}])
def test_a_verdict_without_a_next_stage_is_refused(verdict: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="VERDICT"):
        host_plan().next(verdict)
