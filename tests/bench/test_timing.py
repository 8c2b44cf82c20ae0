"""Seconds without evaluations: with a link alone, since computing takes no virtual time here."""

from __future__ import annotations

from typing import Any

import pytest

import celu
from bench.paper.timing import Stages, seconds_by_round
from celu.config.link import LinkSettings
from celu.events import Callback, Event, RoundDone, TuningChosen
from federation import federation

LINK = LinkSettings(mbps=0.2, delay_ms=30)
NEVER = 1000


def job(rounds: int, every: int, **method: Any) -> celu.Job:
    return federation(
        rounds=rounds,
        method=celu.Method(**method),
        evaluation=celu.Evaluation(every=every, metric="loss"),
    ).job


def simulate(job: celu.Job, callback: Callback) -> None:
    fed = federation()
    celu.simulate(job, fed.guest, fed.hosts, link=LINK, timer=lambda: 0.0, callbacks=[callback])


def seconds_after(job: celu.Job) -> dict[int, float]:
    found: dict[int, float] = {}

    def record(event: Event) -> None:
        if isinstance(event, RoundDone):
            found[event.round] = event.seconds

    simulate(job, record)
    return found


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_seconds_are_those_of_a_run_without_evaluations(depth: int) -> None:
    often, never = (job(30, every, depth=depth, R=3, W=3) for every in (4, NEVER))
    expected = seconds_after(never)
    seconds = seconds_by_round(Stages(often), 28, simulate)
    assert [seconds(n) for n in (4, 16, 28)] == pytest.approx([expected[n] for n in (4, 16, 28)])


def test_a_long_stage_continues_at_its_pace() -> None:
    long = job(300, NEVER, depth=3)
    expected = seconds_after(long)
    assert seconds_by_round(Stages(long), 290, simulate)(290) == pytest.approx(
        expected[290], rel=1e-2
    )


def test_rounds_that_were_rolled_back_count() -> None:
    stages = Stages(job(60, 5, auto=True))
    assert stages.executed(3) == 3
    chosen: dict[str, Any] = {"W": {"guest": 5, "host": 5}, "R": {"guest": 3, "host": 3}}
    chosen |= {
        "seconds": 0.0,
        "codec": {"activation": "4bit", "derivative": "4bit", "evaluation": "int8"},
    }
    stages.add(TuningChosen(round=16, until=40, reason="continued", depth=3, **chosen))
    assert stages.executed(40) == 40
    stages.add(TuningChosen(round=0, until=40, reason="rolled back", depth=2, **chosen))
    assert stages.executed(6) == 46
    timed = stages.job(46)
    assert [(c.round, c.depth) for c in timed.choices] == [(0, 4), (16, 3), (40, 2)]
    assert timed.rounds == 46
    assert seconds_by_round(stages, 46, simulate)(46) > seconds_by_round(stages, 40, simulate)(40)
