"""Synthetic outcomes of segments, and a driver that runs an `AutoPlan` without training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import celu
from celu.codecs.registry import find_codec
from celu.config.job import Job
from celu.engine.auto import AutoPlan
from celu.engine.outcome import Outcome, Timings
from celu.engine.plan import Stage
from celu.engine.schedule import Schedule, Segment
from celu.models.losses import ConstantLoss

BATCH, WIDTH = 32, 64
ROUND_TRIP_S = 0.04
GUEST_S, HOST_S = 0.010, 0.020  # per exchange
GUEST_STEP_S, HOST_STEP_S = 0.008, 0.016
SLOW, FAST = 1e-4, 1e-9  # seconds per byte; [32, 64] in 2 bits takes some 60 ms on the slow link

Of = Callable[[Stage], float]


def auto_job(rounds: int = 2000, method: dict[str, Any] | None = None, **job: Any) -> Job:
    return celu.Job(
        rounds=rounds,
        batch_size=BATCH,
        hosts={"host": celu.HostTerms(z_width=WIDTH)},
        method=celu.Method(auto=True, **(method or {})),
        evaluation=celu.Evaluation(every=50, metric="auc"),
        **job,
    )


def schedule(rounds: int = 2000, rounds_per_epoch: int = 20000) -> Schedule:
    return Schedule(rounds, rounds_per_epoch, evaluate_every=50, test_rows=10, part_rows=10)


def auto_plan(
    rounds: int = 2000,
    rounds_per_epoch: int = 20000,
    method: dict[str, Any] | None = None,
    constant_loss: ConstantLoss | None = None,
    **job: Any,
) -> AutoPlan:
    contract = auto_job(rounds, method, **job)
    return AutoPlan(contract, schedule(rounds, rounds_per_epoch), constant_loss)


def pair(segment: Segment) -> tuple[int, int]:
    """R of the guest and of the hosts."""
    return segment.tuning.for_role("guest")[1], segment.tuning.for_role("host")[1]


def outcome(segment: Segment, *weights: float, byte_s: float = SLOW) -> Outcome:
    """The outcome of a segment on a link with `byte_s`; `weights` are reuse weights of hosts."""
    rounds, codecs = len(segment.measured), segment.tuning.codecs
    up, down = (
        find_codec(name, "codec").max_bytes(BATCH, WIDTH)
        for name in (codecs.activation, codecs.derivative)
    )
    steps = [R - 1 for R in pair(segment)]
    guest_s, host_s = GUEST_S + steps[0] * GUEST_STEP_S, HOST_S + steps[1] * HOST_STEP_S
    busy_s = max(guest_s, host_s, up * byte_s, down * byte_s)
    latency_s = ROUND_TRIP_S + (up + down) * byte_s + GUEST_S + HOST_S
    depth = segment.tuning.depth
    cycle_s = max(latency_s, depth * busy_s)

    def timings(
        exchange_s: float, step_s: float, steps: int, size: int, weight: float = 0.0
    ) -> Timings:
        return Timings(
            rounds,
            seconds=rounds * cycle_s / depth,
            waited_s=rounds * max(0.0, cycle_s / depth - exchange_s - steps * step_s),
            local_s=rounds * steps * step_s,
            local_steps=rounds * steps,
            transfer_s=rounds * size * byte_s,
            transfer_bytes=rounds * size,
            reuse_weight=weight,
        )

    guest = timings(GUEST_S, GUEST_STEP_S, steps[0], up)
    hosts = [timings(HOST_S, HOST_STEP_S, steps[1], down, weight) for weight in weights or (0.0,)]
    shortest_s = max(latency_s, depth * max(GUEST_S, HOST_S, up * byte_s, down * byte_s))
    return Outcome(segment, guest, tuple(hosts), [], [], cycle_s, shortest_s)


def falling(stage: Stage, round_: int) -> float:
    """A loss that falls slowly."""
    return 0.7 - 1e-5 * round_


def rises_from(first: int, to: float = 1.0) -> Callable[[Stage, int], float]:
    return lambda stage, round_: to if round_ >= first else falling(stage, round_)


def run_stage(
    plan: AutoPlan,
    stage: Stage,
    *,
    weight: Of = lambda stage: 0.0,
    loss: Callable[[Stage, int], float] = falling,
    score: Callable[[Stage], list[float]] = lambda stage: [],
    byte_s: Of = lambda stage: SLOW,
    after_round: Callable[[int], AutoPlan] | None = None,
) -> tuple[AutoPlan, Stage | None]:
    """One segment; `after_round` may replace the plan by one that resumes from its checkpoint."""
    for round_ in stage.segment.rounds:
        plan.observe_loss(round_, torch.tensor(loss(stage, round_)))
        if round_ == stage.segment.stop - 2:
            for value in score(stage):
                plan.observe_score(value)
        if after_round is not None and round_ < stage.segment.stop - 1:
            plan = after_round(round_ + 1)
    return plan, plan.next(outcome(stage.segment, weight(stage), byte_s=byte_s(stage)))


def run_plan(plan: AutoPlan, **how: Any) -> list[Stage]:
    """All stages of a plan; see `run_stage`."""
    stages = [plan.first()]
    while True:
        _, stage = run_stage(plan, stages[-1], **how)
        if stage is None:
            return stages
        stages.append(stage)
