"""A run that chooses for itself: what it may choose, why, and that it can be repeated."""

import copy
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.config.job import Choice, Job, Tuning, read_job
from celu.config.link import LinkSettings
from celu.config.replay import replay_toml
from celu.engine.auto import AutoPlan, _beats
from celu.engine.cost_model import Costs
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.engine.link_tuning import LinkTuner
from celu.engine.outcome import Outcome, Timings
from celu.engine.plan import HostPlan, Stage, first_stage
from celu.engine.schedule import Schedule, Segment
from celu.errors import ProtocolError
from federation import (
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    train_over_grpc,
)

# A message of [32, 64] is 8192 bytes in float32: 66 ms on this line.
SLOW = LinkSettings(mbps=1, delay_ms=20)


def auto(**method: Any) -> celu.Method:
    return celu.Method(auto=True, **method)


def choosing(rounds: int = 200, **job: Any) -> Federation:
    # One epoch is six rounds here, so trials are judged by the held-out rows.
    evaluation = celu.Evaluation(every=50, metric="auc")
    return federation(
        rounds=rounds, **{"evaluation": evaluation, "method": auto(), "hosts": {"host": 64}, **job}
    )


def chosen(fed: Federation) -> tuple[celu.Result, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []

    def note(event: celu.Event) -> None:
        events.append({"event": event.event, **event.fields})

    result = celu.simulate(fed.job, fed.guest, fed.hosts, link=SLOW, speed=20, callbacks=[note])
    return result, [event for event in events if event["event"] == "choice"]


def with_choices(job: Job, choices: list[Choice], folder: Path) -> Job:
    """As a user has it: the file that a run leaves is the contract of the next."""
    path = folder / "replay.toml"
    path.write_text(replay_toml(job, choices))
    return read_job(path)


def test_on_a_slow_line_it_fills_the_line_and_tries_local_steps() -> None:
    fed = choosing()
    result, choices = chosen(fed)
    last = result.choices[-1]
    assert last.depth > 1
    assert last.codecs.activation != "fp32"
    assert any("trial: R" in choice["reason"] for choice in choices)
    assert any(choice.get("back_to") == "base" for choice in choices)
    assert result.rounds == 200
    assert [c.round for c in result.choices] == sorted({c.round for c in result.choices})


def test_a_slow_first_update_is_not_taken_for_distance() -> None:
    fed = choosing(rounds=20)
    (host,) = fed.hosts.values()
    slow = [0.5]  # seconds, once

    def at_a_gradient(*_: Any) -> None:
        time.sleep(slow.pop() if slow else 0)

    next(host.bottom.parameters()).register_hook(at_a_gradient)
    result = celu.simulate(fed.job, fed.guest, fed.hosts, link=SLOW)
    assert not slow
    told = next(c.reason for c in result.choices if "round trip" in c.reason)
    (round_trip_ms,) = re.findall(r"round trip ([\d.]+) ms", told)
    assert 20 < float(round_trip_ms) < 150  # 40 there and back; a third of the half second is 167


@pytest.mark.parametrize("hosts", [{"host": 64}, {"one": 64, "two": 32}], ids=["one", "two"])
def test_a_run_is_repeated_to_the_bit_by_its_choices(tmp_path: Path, hosts: dict[str, int]) -> None:
    fed = choosing(hosts=hosts)
    again = copy.deepcopy(fed)
    result, _ = chosen(fed)
    again.job = with_choices(fed.job, result.choices, tmp_path)
    assert len({tuple(c.for_role("guest")) for c in result.choices}) > 1  # something was chosen
    assert_same_bits(train_in_memory(again), fed.weights())


def test_over_a_network_too(tmp_path: Path) -> None:
    fed = choosing(rounds=80)
    noted: list[Choice] = []
    again = copy.deepcopy(fed)
    weights = train_over_grpc(fed, tmp_path, result=lambda r: noted.extend(r.choices))
    again.job = with_choices(fed.job, noted, tmp_path)
    assert_same_bits(train_in_memory(again), weights)


def test_what_is_written_down_stays_as_it_is_written() -> None:
    fed = choosing(method=auto(R={"guest": 2, "host": 1}, depth=3), codec="bf16", rounds=60)
    result, choices = chosen(fed)
    for choice in result.choices:
        assert choice.for_role("guest")[1] == 2
        assert choice.for_role("host")[1] == 1
        assert choice.depth == 3
        assert choice.codecs.activation == "bf16"
    assert not any("trial" in choice["reason"] for choice in choices)


def test_a_run_too_short_to_try_anything_still_ends() -> None:
    for rounds in (1, 3, 4, 5, 14, 20):
        result, _ = chosen(choosing(rounds=rounds))
        assert result.rounds == rounds


def test_a_guest_alone_may_choose_too() -> None:
    fed = choosing(rounds=40, hosts={})
    result = celu.simulate(fed.job, fed.guest, {})
    assert result.rounds == 40


def test_a_target_ends_a_run_wherever_it_is() -> None:
    evaluation = celu.Evaluation(every=5, metric="auc", target=0.55)
    result, _ = chosen(choosing(evaluation=evaluation))
    assert result.evaluations[-1]["auc"] >= 0.55
    assert result.rounds < 200


# What follows from costs, by hand. Messages of 1,000 bytes; a byte takes 0.1 ms, so 100 ms a round.
COSTS = Costs(
    up_byte_s=1e-4,
    down_byte_s=1e-4,
    round_trip_s=0.04,
    guest_s=0.010,
    host_s=0.020,
    guest_step_s=0.008,
    host_step_s=0.016,
)


def test_a_round_takes_as_long_as_the_slowest_of_line_and_parties() -> None:
    assert COSTS.round_s(1000, 1000) == pytest.approx(0.1)
    assert COSTS.round_s(50, 50) == pytest.approx(0.02)


def test_enough_rounds_are_in_flight_to_cover_the_way_there_and_back() -> None:
    # 40 ms of delay, 100 ms each way, 20 ms at the host, and up to a round until the guest is free.
    assert COSTS.depth(1000, 1000) == 4  # 360 ms, rounds of 100 ms
    assert replace(COSTS, round_trip_s=1.0).depth(1000, 1000) == 14


def test_as_many_local_steps_as_the_line_leaves_time_for() -> None:
    assert COSTS.free_steps(1000, 1000) == (1 + 11, 1 + 5)
    assert COSTS.free_steps(50, 50) == (2, 1)


def plan(**job: Any) -> AutoPlan:
    fed = choosing(rounds=5000, **job)
    return AutoPlan(fed.job, Schedule(5000, 20000, 50, test_rows=10, part_rows=10))


@pytest.mark.parametrize(
    ("byte_s", "codec"), [(1e-9, "fp32"), (4e-6, "bf16"), (9e-6, "int8"), (1e-4, "4bit")]
)
def test_the_most_exact_codec_that_does_not_hold_up_the_parties(byte_s: float, codec: str) -> None:
    # [32, 64] is 8192, 4096, 2304 and 1408 bytes; the host takes 20 ms a round.
    costs = replace(COSTS, up_byte_s=byte_s, down_byte_s=byte_s)
    tuning = LinkTuner(choosing().job).tuning(costs, (1, 1))
    assert tuning.codecs.activation == tuning.codecs.derivative == codec


def times(rounds: int, **spent: float) -> Timings:
    none: dict[str, Any] = dict.fromkeys(
        ("seconds", "waited_s", "local_s", "local_steps", "transfer_s", "transfer_bytes"), 0
    )
    return Timings(rounds=rounds, **{**none, **spent})  # type: ignore[arg-type]


def outcome(segment: Segment, fresh: list[float] | None = None) -> Outcome:
    """A line on which a byte takes 0.1 ms, and parties that take 10 and 20 ms."""
    rounds, carried = len(segment.measured), 1000 * len(segment.measured)
    guest = times(
        rounds, seconds=rounds, waited_s=0.99 * rounds, transfer_s=carried / 1e4,
        transfer_bytes=carried,
    )  # fmt: skip
    host = times(
        rounds, seconds=rounds, waited_s=0.98 * rounds, transfer_s=carried / 1e4,
        transfer_bytes=carried,
    )  # fmt: skip
    return Outcome(segment, 0.5 if segment.evaluates else None, fresh or [], guest, (host,))


def run_plan(plan: AutoPlan, gain: dict[tuple[int, int], float]) -> list[Stage]:
    """Drive a plan: `gain` says how well a pair of R foretells fresh batches."""
    steps = [plan.first()]
    while True:
        segment = steps[-1].segment
        pair = (segment.tuning.for_role("guest")[1], segment.tuning.for_role("host")[1])
        fresh = [gain.get(pair, 0.6)] * len(segment.rounds) if segment.scores_fresh_batches else None
        step = plan.next(outcome(segment, fresh))
        if step is None:
            return steps
        steps.append(step)


@pytest.mark.parametrize(
    "best", [(5, 1), (1, 3), (3, 3), (1, 1)], ids=["guest", "hosts", "both", "nobody"]
)
def test_whose_local_steps_pay_is_found_by_trying(best: tuple[int, int]) -> None:
    made = plan()
    steps = run_plan(made, {best: 0.8})
    after_the_trial = next(
        s
        for s in steps
        if ("scored best" in s.reason or "stays" in s.reason) and "trial" not in s.reason
    ).segment.tuning
    assert (after_the_trial.for_role("guest")[1], after_the_trial.for_role("host")[1]) == best
    trial = [step for step in steps if "trial" in step.reason][:4]
    assert len({step.segment.start for step in trial}) == 1  # all from the same state
    assert [step.restore for step in trial] == [None, "base", "base", "base"]


def test_what_is_tried_pauses_for_evaluations_and_is_not_evaluated() -> None:
    fed = choosing(rounds=2000)
    schedule = Schedule(2000, 700, 10, test_rows=10, part_rows=10)
    steps = run_plan(AutoPlan(fed.job, schedule), {(5, 1): 0.8})
    tried, for_good = [], []
    for step in steps:
        if "trial" in step.reason:
            doing = tried
        elif step.reason != "unchanged" or step.drop_savepoints:
            doing = for_good
        assert step.segment.stop <= schedule.evaluation_after(step.segment.start)
        doing.append(step.segment)
    assert all(s.evaluates == schedule.is_evaluation(s.stop) for s in for_good)
    # In the first epoch fresh batches tell; later the held-out rows, where a trial ends.
    early = [s for s in tried if s.start < 300]
    assert early
    assert all(s.scores_fresh_batches and not s.evaluates for s in early)
    late = [s for s in tried if s.start >= 700]
    assert 0 < sum(s.evaluates for s in late) <= len(late) / 5


def test_steps_that_no_longer_pay_are_made_fewer() -> None:
    # A pair that wins at first, and is beaten by its half when tried again.
    made = plan()
    steps = run_plan(made, {(5, 1): 0.8, (2, 1): 0.9})
    assert made.choices[-1].for_role("guest")[1] == 2
    assert any("R = 2 and 1 scored best" in step.reason for step in steps)


def test_where_fewer_steps_pay_twice_as_many_are_not_tried_at_once() -> None:
    made = plan()
    steps = run_plan(made, {(5, 1): 0.8, (2, 1): 0.9})
    fell = next(step for step in steps if step.reason.startswith("R = 2 and 1 scored best"))
    assert "trial" not in fell.reason


def test_fewer_steps_must_be_better_by_more_than_noise() -> None:
    steady, random = [0.70] * 32, [0.70 + 0.05 * (-1) ** n for n in range(32)]
    better = [x + 0.001 for x in random]
    assert not _beats(better, steady, clearly=True)
    assert _beats(better, steady, clearly=False)
    assert _beats([x + 0.02 for x in random], steady, clearly=True)
    assert _beats([x + 0.001 for x in steady], steady, clearly=True)
    assert _beats([0.71], [0.70], clearly=True)  # one figure, of held-out rows
    assert not _beats([0.70], [0.70], clearly=False)


def test_the_other_party_gets_another_try() -> None:
    made = plan()
    run_plan(made, {(5, 1): 0.8, (5, 3): 0.9})
    last = made.choices[-1]
    assert (last.for_role("guest")[1], last.for_role("host")[1]) == (5, 3)


def test_it_is_tried_again_where_rows_begin_to_be_seen_again() -> None:
    fed = choosing(rounds=2000)
    made = AutoPlan(fed.job, Schedule(2000, 700, 50, test_rows=10, part_rows=10))
    starts = {s.segment.start for s in run_plan(made, {(5, 1): 0.8}) if "trial" in s.reason}
    assert 700 in starts


def test_every_trial_begins_where_the_choices_that_count_have_led() -> None:
    made = plan()
    rounds = 0
    marks: dict[str, int] = {}
    for step in run_plan(made, {(1, 3): 0.8}):
        if step.save:
            marks[step.save] = rounds
        if step.restore:
            rounds = marks[step.restore]
        assert step.segment.start == rounds
        rounds = step.segment.stop
    assert rounds == 5000


def test_a_trainer_goes_back_to_a_state_any_number_of_times() -> None:
    fed = federation(method=celu.Method(R=3), rounds=50)
    trainer = GuestTrainer("guest", fed.guest, fed.job)
    host = HostTrainer("host", fed.hosts["host"], fed.job)

    def some_rounds(first: int) -> dict[str, Any]:
        for round_ in range(first, first + 5):
            _, (answer,) = trainer.compute_derivatives(round_, [host.compute_activation(round_)])
            trainer.apply_update()
            host.update(round_, answer)
            for _ in range(2):
                trainer.local_step()
                host.local_step()
        return fed.weights()

    some_rounds(0)
    saved = trainer.state(), host.state()
    ends = []
    for _ in range(3):
        ends.append(some_rounds(5))
        trainer.roll_back(saved[0])
        host.roll_back(saved[1])
    assert_same_bits(ends[0], ends[1])
    assert_same_bits(ends[0], ends[2])


BODY = {
    "start": 4,
    "stop": 14,
    "tuning": {"W": 5, "R": 3, "depth": 4, "codec": "int8"},
    "scored": False,
    "save": None,
    "restore": None,
    "forget": False,
}


def host_plan() -> HostPlan:
    job = choosing().job
    return HostPlan(job, Schedule(200, 6, 50, test_rows=10, part_rows=10))


def test_a_host_follows_what_it_is_told() -> None:
    told = host_plan()
    assert told.first() == first_stage(choosing().job, Schedule(200, 6, 50, 10, 10))
    step = told.next({"next": {**BODY, "save": "base"}})
    assert step.segment == Segment(4, 14, Tuning(W=5, R=3, depth=4, codec="int8"), evaluates=False)
    back = told.next({"next": {**BODY, "restore": "base"}})
    assert back.segment.start == 4


@pytest.mark.parametrize(
    "change",
    [
        {"start": 5},
        {"start": True},
        {"start": 4.0},
        {"stop": 4},
        {"stop": 201},
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
def test_a_host_is_not_sent_where_it_was_not_nor_beyond_bounds(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="VERDICT"):
        host_plan().next({"next": {**BODY, **change}})


@pytest.mark.parametrize("verdict", [{}, {"next": None}, {"next": 3}, {"next": []}])
def test_a_verdict_without_an_order_is_refused(verdict: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="VERDICT"):
        host_plan().next(verdict)


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": -1.0},
        {"seconds": True},
        {"seconds": 10**400},
        {"seconds": math.nan},
        {"waited_s": "long"},
        {"local_s": None},
        {"local_steps": 1e300},
        {"transfer_bytes": 5e-324},  # by which any time is infinite
    ],
    ids=lambda change: str(change)[:30],
)
def test_a_report_of_no_such_times_is_refused(change: dict[str, Any]) -> None:
    body = {**times(3).to_body(), **change}
    with pytest.raises(ProtocolError, match="REPORT"):
        Timings.from_body(body, 3)
    with pytest.raises(ProtocolError, match="REPORT"):
        Timings.from_body({"seconds": 1}, 3)
