"""A host follows the guest's stages, within a bound on the rounds of a run."""

from __future__ import annotations

from typing import Any

import pytest

from celu.engine.plan import MAX_VARIANTS, HostPlan
from celu.engine.schedule import Schedule
from celu.errors import CheckpointError, ProtocolError
from federation import federation

ROUNDS = 20
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
            assert "at most 5 times the job's 20 rounds" in str(error)
            return executed
        executed += 3
        following = stage(first.stop, first.stop + 3, tuning, restore="base")
    return executed


def test_a_guest_cannot_keep_a_host_training_for_ever() -> None:
    assert roll_back_for_ever(host_plan()) <= MAX_VARIANTS * ROUNDS


def test_a_resumed_host_has_not_forgotten_how_many_rounds_it_executed() -> None:
    plan = host_plan()
    state = {**plan.state_dict(0), "executed": MAX_VARIANTS * ROUNDS}
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
