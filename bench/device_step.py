"""`scripts/bench step --device cuda`: training in one process on a GPU, compared with a loop.

The loop is what a researcher would write: the whole model in one graph, its rows on the device, one
optimizer, nothing between the steps. The engine trains the same model as two parties, messages
included. Both are timed over hundreds of steps, alternating, with the device synchronized at the
start and the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

import celu
from bench.report import BenchResult, Log
from bench.step import BATCH, EMBEDDING, WIDTH, paper_parties, step_job
from celu.data.order import BatchOrder
from celu.events import RoundDone
from celu.party import Guest, Host

_WARM_UP = 100  # a multiple of the rounds between two round events

_ENGINE, _LOOP = "engine", "hand-written loop"
_FEW, _MANY = 3, 5  # R: the difference is local steps alone
_REPEATING = {R: f"engine, R={R} at both parties" for R in (_FEW, _MANY)}
_TF32 = "engine, TF32"
_PROFILED = 200  # rounds


def bench_device_step(log: Log, device: str, turns: int = 3, rounds: int = 1500) -> BenchResult:
    """Steps per second over the loop's: of the engine, with TF32, and of its local steps."""
    result = BenchResult("step", seeds=[1])
    torch.set_num_threads(1)
    fastest: dict[str, float] = {}
    sides: dict[str, Callable[[str, int], float]] = {
        _ENGINE: _engine,
        **{side: partial(_engine, R=R) for R, side in _REPEATING.items()},
        _TF32: partial(_engine, precision="high"),
        _LOOP: _loop,
    }
    for _ in range(turns):
        for side, measure in sides.items():
            ms = 1000 * measure(device, rounds)
            log(f"{side}: {ms:.3f} ms a step")
            fastest[side] = min(ms, fastest.get(side, ms))
    result.rows += [{"side": side, "ms a step": ms} for side, ms in fastest.items()]
    repeated_ms = fastest[_REPEATING[_MANY]] - fastest[_REPEATING[_FEW]]
    local_ms = repeated_ms / (_MANY - _FEW)
    result.figures["simulate_over_loop_gpu"] = fastest[_LOOP] / fastest[_ENGINE]
    result.figures["tf32_over_loop_gpu"] = fastest[_LOOP] / fastest[_TF32]
    result.figures["local_step_over_loop_gpu"] = fastest[_LOOP] / local_ms
    result.figures["host_syncs_a_round"] = _syncs(device)
    result.notes.append(
        f"Steps per second of simulate over those of the loop, on {device}: batch {BATCH}, Z "
        f"{WIDTH}, 26 fields of ids, embedding {EMBEDDING}, hidden 256; AdaGrad; R=1; "
        f"{rounds - _WARM_UP} steps in a turn, the fastest of {turns} turns of each. A local step "
        f"is one of both parties: a round with R={_MANY} less one with R={_FEW}, over "
        f"{_MANY - _FEW}. The loop has float32 matrix products. Synchronizations are those that "
        f"the profiler counts in {_PROFILED} rounds more."
    )
    return result


def _syncs(device: str) -> float:
    """How often a round waits for the device, by torch's profiler."""

    def count(rounds: int) -> int:
        guest, host = _parties(device)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            celu.simulate(step_job(rounds), guest, {"host": host})
        return sum(event.count for event in profiler.key_averages() if "Synchronize" in event.key)

    return (count(_WARM_UP + _PROFILED) - count(_WARM_UP)) / _PROFILED


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


def _engine(device: str, rounds: int, R: int = 1, precision: str = "highest") -> float:
    """Seconds per round, after a warm-up."""
    guest, host = _parties(device)
    job = step_job(rounds)
    job = job.model_copy(update={"method": celu.Method(W=5, R=R)})
    at: dict[int, float] = {}

    def emit(event: celu.Event) -> None:
        if isinstance(event, RoundDone):  # once the device has computed the round's loss
            at[event.round] = time.perf_counter()

    torch.set_float32_matmul_precision(precision)
    celu.simulate(job, guest, {"host": host}, callbacks=[emit])
    torch.set_float32_matmul_precision("highest")
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
