"""`scripts/bench step --device cuda`: training in one process on a GPU, compared with a loop.

The loop is what a researcher would write: the whole model in one graph, its rows on the device, one
optimizer, nothing between the steps. The engine trains the same model as two parties, messages
included. Both are timed over hundreds of steps, alternating, with the device synchronized at the
start and the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import celu
from bench.report import BenchResult, Log
from bench.step import BATCH, EMBEDDING, WIDTH, paper_parties, step_job
from celu.data.order import BatchOrder
from celu.events import RoundDone
from celu.party import Guest, Host

_WARM_UP = 100  # a multiple of the rounds between two round events

_LOOP = "hand-written loop"


def bench_device_step(log: Log, device: str, turns: int = 3, rounds: int = 1500) -> BenchResult:
    """Measure one figure: the engine's steps per second over the loop's."""
    result = BenchResult("step", seeds=[1])
    torch.set_num_threads(1)
    fastest: dict[str, float] = {}
    sides: dict[str, Callable[[str, int], float]] = {"engine": _engine, _LOOP: _loop}
    for _ in range(turns):
        for side, measure in sides.items():
            ms = 1000 * measure(device, rounds)
            log(f"{side}: {ms:.3f} ms a step")
            fastest[side] = min(ms, fastest.get(side, ms))
    result.rows += [{"side": side, "ms a step": ms} for side, ms in fastest.items()]
    result.figures["simulate_over_loop_gpu"] = fastest[_LOOP] / fastest["engine"]
    result.notes.append(
        f"Steps per second of simulate over those of the loop, on {device}: batch {BATCH}, Z "
        f"{WIDTH}, 26 fields of ids, embedding {EMBEDDING}, hidden 256; AdaGrad; R=1; "
        f"{rounds - _WARM_UP} steps in a turn, the fastest of {turns} turns of each."
    )
    return result


def _parties(device: str) -> tuple[Guest, Host]:
    guest, host = paper_parties()
    assert guest.bottom is not None
    target = torch.device(device)
    mine, theirs = guest.train.to(target), host.train.to(target)
    return (
        Guest(
            top=guest.top.to(target),
            loss=guest.loss,
            train=mine,
            test=mine,
            bottom=guest.bottom.to(target),
        ),
        Host(bottom=host.bottom.to(target), train=theirs, test=theirs),
    )


def _engine(device: str, rounds: int) -> float:
    """Seconds per round, after a warm-up."""
    guest, host = _parties(device)
    at: dict[int, float] = {}

    def emit(event: celu.Event) -> None:
        if isinstance(event, RoundDone):
            at[event.round] = _now(device)

    celu.simulate(step_job(rounds), guest, {"host": host}, callbacks=[emit])
    first = min(round_ for round_ in at if round_ >= _WARM_UP)
    return (at[rounds] - at[first]) / (rounds - first)


def _loop(device: str, rounds: int) -> float:
    """Seconds per step, after a warm-up."""
    guest, host = _parties(device)
    assert guest.bottom is not None
    modules = [host.bottom, guest.bottom, guest.top]
    optimizer = torch.optim.Adagrad([p for m in modules for p in m.parameters()], lr=0.01)
    order = BatchOrder(1, host.train.num_rows, BATCH)
    started = 0.0
    for step in range(rounds):
        if step == _WARM_UP:
            started = _now(device)
        rows = order.rows(step).to(device)
        mine, labels = guest.train.inputs["numbers"][rows], guest.train.labels
        assert labels is not None
        z_BD = host.bottom(ids=host.train.inputs["ids"][rows])
        output = guest.top(guest.bottom(numbers=mine), z_BD)
        guest.loss.per_instance(output, labels[rows]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return (_now(device) - started) / (rounds - _WARM_UP)


def _now(device: str) -> float:
    """The time after the device has finished its queue."""
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()
