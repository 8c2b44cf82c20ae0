"""`method = "auto"`: which tunings it chooses, and that its choices replay the run."""

import copy
import math
import re
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

# A message of [32, 64] is 8192 bytes in float32: 66 ms on this link.
SLOW = LinkSettings(mbps=1, delay_ms=20)


def auto(**method: Any) -> celu.Method:
    return celu.Method(auto=True, **method)


def auto_federation(rounds: int = 200, **job: Any) -> Federation:
    # An epoch has six rounds here, so trials are scored on the held-out rows.
    evaluation = celu.Evaluation(every=50, metric="auc")
    return federation(
        rounds=rounds, **{"evaluation": evaluation, "method": auto(), "hosts": {"host": 64}, **job}
    )


def run(fed: Federation) -> tuple[celu.Result, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []

    def record(event: celu.Event) -> None:
        events.append({"event": event.event, **event.fields})

    result = celu.simulate(fed.job, fed.guest, fed.hosts, link=SLOW, speed=1000, callbacks=[record])
    return result, [event for event in events if event["event"] == "choice"]


def with_choices(job: Job, choices: list[Choice], folder: Path) -> Job:
    """As a user does it: the replay file of a run is the contract of the next one."""
    path = folder / "replay.toml"
    path.write_text(replay_toml(job, choices))
    return read_job(path)


def test_on_a_slow_link_it_saturates_the_link_and_tries_local_steps() -> None:
    fed = auto_federation()
    result, choices = run(fed)
    last = result.choices[-1]
    assert last.depth > 1
    assert last.codecs.activation != "fp32"
    assert any("trial: R" in choice["reason"] for choice in choices)
    assert any(choice.get("back_to") == "base" for choice in choices)
    assert result.rounds == 200
    assert [c.round for c in result.choices] == sorted({c.round for c in result.choices})


def test_a_slow_first_update_is_not_measured_as_latency() -> None:
    fed = auto_federation(rounds=20)
    (host,) = fed.hosts.values()
    slow, computed = [0.5], [0.0]  # seconds, once; the timer

    def at_a_gradient(*_: Any) -> None:
        computed[0] += slow.pop() if slow else 0

    next(host.bottom.parameters()).register_hook(at_a_gradient)
    result = celu.simulate(fed.job, fed.guest, fed.hosts, link=SLOW, timer=lambda: computed[0])
    assert not slow
    reason = next(c.reason for c in result.choices if "round trip" in c.reason)
    (round_trip_ms,) = re.findall(r"round trip ([\d.]+) ms", reason)
    assert 20 < float(round_trip_ms) < 150  # 40 expected; a third of the 0.5 s is 167


@pytest.mark.parametrize("hosts", [{"host": 64}, {"one": 64, "two": 32}], ids=["one", "two"])
def test_its_choices_replay_a_run_bit_for_bit(tmp_path: Path, hosts: dict[str, int]) -> None:
    fed = auto_federation(hosts=hosts)
    again = copy.deepcopy(fed)
    result, _ = run(fed)
    again.job = with_choices(fed.job, result.choices, tmp_path)
    assert len({tuple(c.for_role("guest")) for c in result.choices}) > 1  # the tuning did change
    assert_same_bits(train_in_memory(again), fed.weights())


def test_its_choices_replay_a_run_over_grpc(tmp_path: Path) -> None:
    fed = auto_federation(rounds=80)
    choices: list[Choice] = []
    again = copy.deepcopy(fed)
    weights = train_over_grpc(fed, tmp_path, result=lambda r: choices.extend(r.choices))
    again.job = with_choices(fed.job, choices, tmp_path)
    assert_same_bits(train_in_memory(again), weights)


def test_settings_that_the_contract_fixes_are_not_changed() -> None:
    fed = auto_federation(method=auto(R={"guest": 2, "host": 1}, depth=3), codec="bf16", rounds=60)
    result, choices = run(fed)
    for choice in result.choices:
        assert choice.for_role("guest")[1] == 2
        assert choice.for_role("host")[1] == 1
        assert choice.depth == 3
        assert choice.codecs.activation == "bf16"
    assert not any("trial" in choice["reason"] for choice in choices)


def test_a_run_too_short_for_a_trial_still_ends() -> None:
    for rounds in (1, 3, 4, 5, 14, 20):
        result, _ = run(auto_federation(rounds=rounds))
        assert result.rounds == rounds


def test_auto_works_for_a_guest_without_hosts() -> None:
    fed = auto_federation(rounds=40, hosts={})
    result = celu.simulate(fed.job, fed.guest, {})
    assert result.rounds == 40


def test_a_run_ends_when_it_reaches_its_target() -> None:
    evaluation = celu.Evaluation(every=5, metric="auc", target=0.55)
    result, _ = run(auto_federation(evaluation=evaluation))
    assert result.evaluations[-1]["auc"] >= 0.55
    assert result.rounds < 200


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


def test_depth_covers_the_latency_of_a_round() -> None:
    # 40 ms round trip, 100 ms each way, 20 ms at the host, and a round until the guest is free.
    assert COSTS.depth(1000, 1000) == 4  # 360 ms, rounds of 100 ms
    assert replace(COSTS, round_trip_s=1.0).depth(1000, 1000) == 14


def test_local_steps_are_limited_to_the_time_that_the_link_leaves() -> None:
    assert COSTS.free_steps(1000, 1000) == (1 + 11, 1 + 5)
    assert COSTS.free_steps(50, 50) == (2, 1)


def plan(**job: Any) -> AutoPlan:
    fed = auto_federation(rounds=5000, **job)
    return AutoPlan(fed.job, Schedule(5000, 20000, 50, test_rows=10, part_rows=10))


@pytest.mark.parametrize(
    ("byte_s", "codec"), [(1e-9, "fp32"), (4e-6, "bf16"), (9e-6, "int8"), (1e-4, "4bit")]
)
def test_it_chooses_the_most_exact_codec_that_does_not_slow_down_a_round(
    byte_s: float, codec: str
) -> None:
    # [32, 64] is 8192, 4096, 2304 and 1408 bytes; the host takes 20 ms per round.
    costs = replace(COSTS, up_byte_s=byte_s, down_byte_s=byte_s)
    tuning = LinkTuner(auto_federation().job).tuning(costs, (1, 1))
    assert tuning.codecs.activation == tuning.codecs.derivative == codec


def times(rounds: int, **spent: float) -> Timings:
    none: dict[str, Any] = dict.fromkeys(
        ("seconds", "waited_s", "local_s", "local_steps", "transfer_s", "transfer_bytes"), 0
    )
    return Timings(rounds=rounds, **{**none, **spent})  # type: ignore[arg-type]


def outcome(segment: Segment, fresh: list[float] | None = None) -> Outcome:
    """The outcome of a segment on a link with 0.1 ms per byte; parties take 10 and 20 ms."""
    rounds, num_bytes = len(segment.measured), 1000 * len(segment.measured)
    guest = times(
        rounds, seconds=rounds, waited_s=0.99 * rounds, transfer_s=num_bytes / 1e4,
        transfer_bytes=num_bytes,
    )  # fmt: skip
    host = times(
        rounds, seconds=rounds, waited_s=0.98 * rounds, transfer_s=num_bytes / 1e4,
        transfer_bytes=num_bytes,
    )  # fmt: skip
    return Outcome(segment, 0.5 if segment.evaluates else None, fresh or [], guest, (host,))


def run_plan(plan: AutoPlan, gain: dict[tuple[int, int], float]) -> list[Stage]:
    """Run a plan to its end; `gain` is the score of a pair of R on fresh batches."""
    stages = [plan.first()]
    while True:
        segment = stages[-1].segment
        pair = (segment.tuning.for_role("guest")[1], segment.tuning.for_role("host")[1])
        fresh = (
            [gain.get(pair, 0.6)] * len(segment.rounds) if segment.scores_fresh_batches else None
        )
        stage = plan.next(outcome(segment, fresh))
        if stage is None:
            return stages
        stages.append(stage)


@pytest.mark.parametrize(
    "best", [(5, 1), (1, 3), (3, 3), (1, 1)], ids=["guest", "hosts", "both", "nobody"]
)
def test_a_trial_finds_which_party_should_do_local_steps(best: tuple[int, int]) -> None:
    made = plan()
    stages = run_plan(made, {best: 0.8})
    after_the_trial = next(
        s
        for s in stages
        if ("scored best" in s.reason or "stays" in s.reason) and "trial" not in s.reason
    ).segment.tuning
    assert (after_the_trial.for_role("guest")[1], after_the_trial.for_role("host")[1]) == best
    trial = [stage for stage in stages if "trial" in stage.reason][:4]
    assert len({stage.segment.start for stage in trial}) == 1  # all from the same state
    assert [stage.restore for stage in trial] == [None, "base", "base", "base"]


def test_a_trial_is_cut_at_evaluations_but_skips_them() -> None:
    fed = auto_federation(rounds=2000)
    schedule = Schedule(2000, 700, 10, test_rows=10, part_rows=10)
    stages = run_plan(AutoPlan(fed.job, schedule), {(5, 1): 0.8})
    trials, others = [], []
    for stage in stages:
        if "trial" in stage.reason:
            current = trials
        elif stage.reason != "unchanged" or stage.drop_savepoints:
            current = others
        assert stage.segment.stop <= schedule.evaluation_after(stage.segment.start)
        current.append(stage.segment)
    assert all(s.evaluates == schedule.is_evaluation(s.stop) for s in others)
    # The first epoch scores fresh batches; later a trial scores the held-out rows at its end.
    early = [s for s in trials if s.start < 300]
    assert early
    assert all(s.scores_fresh_batches and not s.evaluates for s in early)
    late = [s for s in trials if s.start >= 700]
    assert 0 < sum(s.evaluates for s in late) <= len(late) / 5


def test_local_steps_that_no_longer_help_are_reduced() -> None:
    # A pair that wins at first and loses to half its R in the next trial.
    made = plan()
    stages = run_plan(made, {(5, 1): 0.8, (2, 1): 0.9})
    assert made.choices[-1].for_role("guest")[1] == 2
    assert any("R = 2 and 1 scored best" in stage.reason for stage in stages)


def test_if_fewer_local_steps_win_more_are_not_tried_right_away() -> None:
    made = plan()
    stages = run_plan(made, {(5, 1): 0.8, (2, 1): 0.9})
    reduced = next(stage for stage in stages if stage.reason.startswith("R = 2 and 1 scored best"))
    assert "trial" not in reduced.reason


def test_fewer_local_steps_must_win_by_more_than_the_standard_error() -> None:
    steady, noisy = [0.70] * 32, [0.70 + 0.05 * (-1) ** n for n in range(32)]
    better = [x + 0.001 for x in noisy]
    assert not _beats(better, steady, clearly=True)
    assert _beats(better, steady, clearly=False)
    assert _beats([x + 0.02 for x in noisy], steady, clearly=True)
    assert _beats([x + 0.001 for x in steady], steady, clearly=True)
    assert _beats([0.71], [0.70], clearly=True)  # a single score, of the held-out rows
    assert not _beats([0.70], [0.70], clearly=False)


def test_a_later_trial_adds_local_steps_at_the_other_party() -> None:
    made = plan()
    run_plan(made, {(5, 1): 0.8, (5, 3): 0.9})
    last = made.choices[-1]
    assert (last.for_role("guest")[1], last.for_role("host")[1]) == (5, 3)


def test_a_trial_starts_at_the_end_of_the_first_epoch() -> None:
    fed = auto_federation(rounds=2000)
    made = AutoPlan(fed.job, Schedule(2000, 700, 50, test_rows=10, part_rows=10))
    starts = {s.segment.start for s in run_plan(made, {(5, 1): 0.8}) if "trial" in s.reason}
    assert 700 in starts


def test_every_stage_starts_at_the_current_round_or_at_a_savepoint() -> None:
    made = plan()
    rounds = 0
    savepoints: dict[str, int] = {}
    for stage in run_plan(made, {(1, 3): 0.8}):
        if stage.save:
            savepoints[stage.save] = rounds
        if stage.restore:
            rounds = savepoints[stage.restore]
        assert stage.segment.start == rounds
        rounds = stage.segment.stop
    assert rounds == 5000


def test_a_trainer_can_be_rolled_back_to_a_state_any_number_of_times() -> None:
    fed = federation(method=celu.Method(R=3), rounds=50)
    trainer = GuestTrainer("guest", fed.guest, fed.job)
    host = HostTrainer("host", fed.hosts["host"], fed.job)

    def some_rounds(first: int) -> dict[str, Any]:
        for round_ in range(first, first + 5):
            _, (derivative,) = trainer.compute_derivatives(
                round_, [host.compute_activation(round_)]
            )
            trainer.apply_update()
            host.update(round_, derivative)
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


def test_a_plans_checkpoint_has_the_keys_that_earlier_releases_read() -> None:
    made = plan()
    made.next(outcome(made.first().segment))
    (stored,) = made.state_dict(4)
    assert set(stored) == {"segment", "held_out", "fresh", "guest", "hosts"}
    assert set(stored["segment"]) == {"start", "stop", "tuning", "scored", "judged"}
    assert plan().load_state_dict([stored], 4) is not None


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
    job = auto_federation().job
    return HostPlan(job, Schedule(200, 6, 50, test_rows=10, part_rows=10))


def test_a_host_follows_the_stages_that_the_guest_sends() -> None:
    plan = host_plan()
    assert plan.first() == first_stage(auto_federation().job, Schedule(200, 6, 50, 10, 10))
    stage = plan.next({"next": {**BODY, "save": "base"}})
    assert stage.segment == Segment(4, 14, Tuning(W=5, R=3, depth=4, codec="int8"), evaluates=False)
    back = plan.next({"next": {**BODY, "restore": "base"}})
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
def test_a_host_refuses_a_stage_from_another_round_or_beyond_bounds(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="VERDICT"):
        host_plan().next({"next": {**BODY, **change}})


@pytest.mark.parametrize("verdict", [{}, {"next": None}, {"next": 3}, {"next": []}])
def test_a_verdict_without_a_next_stage_is_refused(verdict: dict[str, Any]) -> None:
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
        {"transfer_bytes": 5e-324},  # seconds per byte would be infinite
    ],
    ids=lambda change: str(change)[:30],
)
def test_a_report_with_invalid_timings_is_refused(change: dict[str, Any]) -> None:
    body = {**times(3).to_body(), **change}
    with pytest.raises(ProtocolError, match="REPORT"):
        Timings.from_body(body, 3)
    with pytest.raises(ProtocolError, match="REPORT"):
        Timings.from_body({"seconds": 1}, 3)
