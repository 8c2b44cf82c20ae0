"""Evaluations happen with rounds in flight, and do not change the weights."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import celu
from celu.config.link import LinkSettings
from celu.events import Evaluated
from federation import (
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    train_over_grpc,
)
from slow.engine.test_resume import Noisy, attempt, ends, weights_of

NEVER = 1000  # only after the last round


def two_hosts(depth: int, every: int, **job: Any) -> Federation:
    return federation(
        rounds=17,
        hosts={"one": 6, "two": 3},
        method=celu.Method(R=3, W=3, depth=depth),
        evaluation=celu.Evaluation(every=every, metric="loss"),
        **job,
    )


def with_running_means(**job: Any) -> Federation:
    fed = federation(method=celu.Method(R=3, W=3, depth=4), **job)
    host = fed.hosts["host"]
    fed.hosts["host"] = celu.Host(bottom=Noisy(host.bottom, 6), train=host.train, test=host.test)
    return fed


@pytest.mark.parametrize("depth", [1, 4])
def test_the_weights_do_not_depend_on_how_often_a_run_evaluates(depth: int) -> None:
    expected = train_in_memory(two_hosts(depth, NEVER))
    for every in (1, 7):
        assert_same_bits(train_in_memory(two_hosts(depth, every)), expected)


@pytest.mark.parametrize("depth", [1, 4])
def test_nor_do_they_over_sockets(depth: int, tmp_path: Path) -> None:
    expected = train_in_memory(two_hosts(depth, NEVER))
    for every in (1, 7):
        results: list[celu.Result] = []
        fed = two_hosts(depth, every)
        assert_same_bits(train_over_grpc(fed, tmp_path, result=results.append), expected)
        assert len(results[0].evaluations) == -(-17 // every)


def test_running_means_and_dropout_do_not_depend_on_evaluations() -> None:
    often, never = (
        with_running_means(evaluation=celu.Evaluation(every=every, metric="loss"))
        for every in (2, NEVER)
    )
    assert_same_bits(train_in_memory(often), train_in_memory(never))


def held_out_loss(fed: Federation) -> float:
    for module in fed.modules().values():
        module.eval()
    assert fed.guest.bottom is not None and fed.guest.test.labels is not None
    with torch.no_grad():
        z: list[Tensor] = [fed.guest.bottom(**fed.guest.test.inputs)]
        z += [host.bottom(**host.test.inputs) for host in fed.hosts.values()]
        losses = fed.guest.loss.per_instance(fed.guest.top(*z), fed.guest.test.labels)
    return float(losses.double().mean())


def test_a_run_that_stops_at_its_target_ends_with_the_weights_that_were_evaluated(
    tmp_path: Path,
) -> None:
    # Three rounds are in flight, and the host's forward passes for them change its running means.
    evaluation = celu.Evaluation(every=5, metric="loss", target=100.0)
    fed = with_running_means(evaluation=evaluation, checkpoint={"every": 2})
    trained = copy.deepcopy(fed)
    result = celu.simulate(trained.job, trained.guest, trained.hosts)
    assert result.rounds == 5
    assert held_out_loss(trained) == pytest.approx(result.metrics["loss"], rel=1e-6)
    first, turns = attempt(fed, tmp_path / "whole")
    again, few = attempt(fed, tmp_path / "whole")
    assert first is not None and again is not None
    assert (first.rounds, again.rounds, again.traffic["bytes_received"]) == (
        5, 5, first.traffic["bytes_received"]
    )  # fmt: skip
    assert few < turns
    assert_same_bits(weights_of(fed, tmp_path / "whole"), trained.weights())


@pytest.mark.parametrize("target", [None, 100.0])
@pytest.mark.parametrize("every", [1, 3])
def test_interrupted_around_an_evaluation_it_ends_with_the_same_bits(
    every: int, target: float | None, tmp_path: Path
) -> None:
    # Checkpoints are taken at evaluations, with rounds in flight.
    evaluation = celu.Evaluation(every=every, metric="loss", target=target)
    fed = with_running_means(evaluation=evaluation, rounds=7)
    result, turns = attempt(fed, tmp_path / "whole")
    assert result is not None
    for stop in range(3, turns, max(1, turns // 25)):
        folder = tmp_path / f"{stop}"
        assert attempt(fed, folder, turns=stop)[0] is None
        again, _ = attempt(fed, folder)
        assert again is not None
        assert ends(fed, folder) == ends(fed, tmp_path / "whole"), stop
        sent, received = ("bytes_sent", "bytes_received")
        assert [again.traffic[n] for n in (sent, received)] == [
            result.traffic[n] for n in (sent, received)
        ]
        shutil.rmtree(folder)


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_rounds_in_flight_during_an_evaluation_are_not_counted_as_its_time(depth: int) -> None:
    def seconds(every: int) -> dict[int, float]:
        fed = two_hosts(depth, every)
        found: dict[int, float] = {}

        def record(event: celu.Event) -> None:
            if isinstance(event, Evaluated):
                found[event.round] = event.seconds - event.evaluating_s

        # Computing takes no time: what is left is the link's.
        link = LinkSettings(mbps=0.2, delay_ms=30)
        celu.simulate(
            fed.job, fed.guest, fed.hosts, link=link, timer=lambda: 0.0, callbacks=[record]
        )
        return found

    assert seconds(4)[17] >= seconds(NEVER)[17]
