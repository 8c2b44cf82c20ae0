"""Runs with `method = "auto"`: they tune themselves, and their choices replay them."""

import copy
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import InlineWriter
from celu.config.job import Choice, Job, read_job
from celu.config.link import LinkSettings
from celu.config.replay import replay_toml
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.errors import CallbackError
from checkpoint.disks import QuickDisk
from federation import (
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    train_over_grpc,
)

# A message of [32, 64] is 8192 bytes in float32: 66 ms on this link.
SLOW = LinkSettings(mbps=1, delay_ms=20)
EXPLODING = 10.0  # a learning rate


def auto(**method: Any) -> celu.Method:
    return celu.Method(auto=True, **method)


def auto_federation(rounds: int = 200, **job: Any) -> Federation:
    evaluation = celu.Evaluation(every=50, metric="auc")
    return federation(
        rounds=rounds, **{"evaluation": evaluation, "method": auto(), "hosts": {"host": 64}, **job}
    )


def run(
    fed: Federation, timer: Callable[[], float] = time.perf_counter
) -> tuple[celu.Result, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []

    def record(event: celu.Event) -> None:
        events.append({"event": event.event, **event.fields})

    result = celu.simulate(
        fed.job, fed.guest, fed.hosts, link=SLOW, speed=1000, timer=timer, callbacks=[record]
    )
    return result, [event for event in events if event["event"] == "choice"]


def with_choices(job: Job, choices: list[Choice], folder: Path) -> Job:
    """As a user does it: the replay file of a run is the contract of the next one."""
    path = folder / "replay.toml"
    path.write_text(replay_toml(job, choices))
    return read_job(path)


def test_on_a_slow_link_it_saturates_the_link_and_makes_local_steps() -> None:
    result, choices = run(auto_federation())
    assert {c.codecs.activation for c in result.choices} == {"2bit"}
    assert all(c.depth > 4 for c in result.choices if "round trip" in c.reason)
    assert result.choices[0].for_role("guest")[1] > 1  # until the second epoch
    assert any("of a derivative is still to be done" in choice["reason"] for choice in choices)
    assert result.rounds == 200
    assert [c.round for c in result.choices] == sorted({c.round for c in result.choices})


def test_a_run_that_explodes_is_rolled_back_and_its_choices_replay_it(tmp_path: Path) -> None:
    optimizer = celu.Optimizer(name="adagrad", lr=EXPLODING)
    fed = auto_federation(
        optimizer=optimizer, rounds=120, evaluation=celu.Evaluation(every=10, metric="auc")
    )
    again = copy.deepcopy(fed)
    result, choices = run(fed, timer=lambda: 0.0)
    assert any(choice.get("back_to") == "base" for choice in choices)
    rounds = [evaluation["round"] for evaluation in result.evaluations]
    assert rounds == list(range(10, 121, 10))  # those that were rolled back are not among them
    again.job = with_choices(fed.job, result.choices, tmp_path)
    assert_same_bits(train_in_memory(again), fed.weights())


def train_with_checkpoints(
    folder: Path, killed: int | None = None
) -> tuple[list[Choice], dict[str, Any]]:
    """The choices and weights of a long run, which may be killed at a checkpoint."""
    # Codec and depth follow measured time, so they are fixed.
    fed = auto_federation(rounds=400, codec="int8", method=auto(depth=3), checkpoint={"every": 4})
    stores = {
        name: Checkpoints(folder / name, QuickDisk(), InlineWriter()) for name in ("guest", "host")
    }

    def stop(event: celu.Event) -> None:
        if killed is not None and event.event == "checkpoint" and event.fields["round"] >= killed:
            raise RuntimeError("killed")

    result = celu.simulate(
        fed.job, fed.guest, fed.hosts, link=SLOW, timer=lambda: 0.0,
        checkpoints=stores, callbacks=[stop],
    )  # fmt: skip
    return result.choices, fed.weights()


def test_a_run_that_is_killed_in_a_stage_makes_the_same_choices(tmp_path: Path) -> None:
    choices, weights = train_with_checkpoints(tmp_path / "undisturbed")
    assert [c.round for c in choices] == [0, 72, 192, 384]
    for killed in (100, 150, 188):
        folder = tmp_path / f"{killed}"
        with pytest.raises(CallbackError, match="killed"):
            train_with_checkpoints(folder, killed)
        resumed, its_weights = train_with_checkpoints(folder)
        assert resumed == choices, killed
        assert_same_bits(its_weights, weights)


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
    assert 20 < float(round_trip_ms) < 60  # 40 expected


@pytest.mark.parametrize("hosts", [{"host": 64}, {"one": 64, "two": 32}], ids=["one", "two"])
def test_its_choices_replay_a_run_bit_for_bit(tmp_path: Path, hosts: dict[str, int]) -> None:
    fed = auto_federation(hosts=hosts)
    again = copy.deepcopy(fed)
    result, choices = run(fed)
    again.job = with_choices(fed.job, result.choices, tmp_path)
    tunings = {(str(c["R"]), c["depth"]) for c in choices}
    # The tuning did change, or what was tried first was rolled back.
    assert len(tunings) > 1 or any(c.get("back_to") == "base" for c in choices)
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
    result, _ = run(fed)
    for choice in result.choices:
        assert choice.for_role("guest")[1] == 2
        assert choice.for_role("host")[1] == 1
        assert choice.depth == 3
        assert choice.codecs.activation == "bf16"


def test_a_short_run_ends() -> None:
    for rounds in (1, 3, 4, 5, 48, 49, 97):
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
