"""A host's training loop: rounds, Z of held-out rows, checkpoints and the guest's verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from celu.config.schema import HeldOut
from celu.engine.checkpointing import Checkpointer, ResumePoint
from celu.engine.host_trainer import HostTrainer
from celu.engine.observer import Observer
from celu.engine.plan import HostPlan
from celu.engine.schedule import Schedule, Segment
from celu.engine.state import TrainerState, compute_finite, enter_stage
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect


async def train_host(
    trainer: HostTrainer,
    link: Link,
    schedule: Schedule,
    plan: HostPlan,
    observer: Observer,
    checkpointer: Checkpointer,
    resume_point: ResumePoint,
) -> int:
    """Train from a resume point to the end; returns the number of rounds done."""
    savepoints: dict[str, TrainerState] = {}
    rounds_done, stage = resume_point.round, resume_point.stage
    while stage is not None:
        segment, last = stage.segment, stage.segment.stop - 1
        if rounds_done == segment.start:
            enter_stage(stage, trainer, savepoints)
        link.allow(trainer.specs())
        for message in trainer.in_flight():  # after a resume: resend what was in flight
            await link.send(message)
        await _send_activations(trainer, link, segment, rounds_done, observer, savepoints)
        for round_ in range(rounds_done, segment.stop):
            await _finish_round(trainer, link, schedule, segment, round_, observer)
            if round_ == last:
                break
            evaluates = schedule.is_evaluation(round_ + 1)
            if evaluates:
                await _send_held_out(
                    trainer, link, schedule, schedule.evaluated, round_, observer, savepoints
                )
            evaluated = trainer.buffers() if evaluates else {}
            snapshot = checkpointer.maybe_capture(round_ + 1, savepoints)
            if not evaluates:
                checkpointer.save(snapshot)
                checkpointer.announce()
            await _send_activations(trainer, link, segment, round_ + 1, observer, savepoints)
            if evaluates:
                # Until the verdict the weights stay those that were evaluated.
                with observer.evaluating():
                    verdict = await _receive_verdict(link, round_, observer)
                _keep_if_best(trainer, schedule, verdict, round_ + 1, evaluated)
                if verdict.get("stop") is True:
                    trainer.discard_in_flight(evaluated)
                    checkpointer.save_final(round_ + 1)
                    return round_ + 1
                checkpointer.save(snapshot)
                checkpointer.announce()
        timings = observer.timings(len(segment.measured), trainer.workset)
        if schedule.is_evaluation(segment.stop):
            await _send_held_out(
                trainer, link, schedule, schedule.evaluated, last, observer, savepoints
            )
        if plan.follows_guest:
            timings = replace(timings, diverged=observer.pop_diverged())
            await link.send(Message(Kind.REPORT, last, body=timings.to_body()))
        verdict = await _receive_verdict(link, last, observer)
        rounds_done = segment.stop
        _keep_if_best(trainer, schedule, verdict, rounds_done, {})
        if verdict.get("stop") is True:
            checkpointer.save_final(rounds_done)
            return rounds_done
        stage = plan.next(verdict)
        checkpointer.maybe_save(rounds_done, savepoints)
        checkpointer.announce()
        rounds_done = stage.segment.start
    return rounds_done


async def send_test_rows(
    trainer: HostTrainer, link: Link, schedule: Schedule, rounds: int, observer: Observer
) -> None:
    """Send Z of the test rows by the chosen weights, after the last of `rounds` rounds."""
    trainer.set_codecs()
    await _send_held_out(trainer, link, schedule, "test", rounds, observer, {})


async def _send_activations(
    trainer: HostTrainer,
    link: Link,
    segment: Segment,
    round_: int,
    observer: Observer,
    savepoints: Mapping[str, TrainerState],
) -> None:
    """Begin a round: send the Z that is due before its derivative."""
    if round_ == segment.measured.start:
        observer.start_measuring(trainer.workset)
    with observer.computing():
        # Not counted from the last round: an older release, which sent nothing ahead of an
        # evaluation, may have written the checkpoint that we resumed from.
        for ahead in range(trainer.next_to_send(round_), segment.last_sent(round_) + 1):
            compute = partial(trainer.compute_activation, ahead)
            await link.send(_finite(compute, trainer, savepoints, observer))


async def _finish_round(
    trainer: HostTrainer,
    link: Link,
    schedule: Schedule,
    segment: Segment,
    round_: int,
    observer: Observer,
) -> None:
    trainer.start_round(round_)
    if not schedule.local_steps_after_update:  # while Z is in flight, and dZ is computed and sent
        _make_local_steps(trainer, segment, observer)
    with observer.waiting():
        derivative = expect(await link.receive(), Kind.DERIVATIVE, round_)
    with observer.computing():
        trainer.update(round_, derivative)
    if schedule.local_steps_after_update:
        _make_local_steps(trainer, segment, observer)
    observer.round_done(round_, trainer.workset, trainer.lr)


def _make_local_steps(trainer: HostTrainer, segment: Segment, observer: Observer) -> None:
    _, R = segment.tuning.for_role("host")
    with observer.local_steps():
        for _ in range(R - 1):
            trainer.local_step()


async def _send_held_out(
    trainer: HostTrainer,
    link: Link,
    schedule: Schedule,
    rows: HeldOut,
    round_: int,
    observer: Observer,
    savepoints: Mapping[str, TrainerState],
) -> None:
    with observer.evaluating():
        for part, start, stop in schedule.held_out_parts(rows):
            compute = partial(trainer.compute_test_activation, rows, round_, part, start, stop)
            await link.send(_finite(compute, trainer, savepoints, observer))


def _keep_if_best(
    trainer: HostTrainer,
    schedule: Schedule,
    verdict: Mapping[str, Any],
    rounds_done: int,
    evaluated: Mapping[str, Tensor],
) -> None:
    """Copy the weights if the guest found them the best; `evaluated` are the buffers they had."""
    if schedule.validates and verdict.get("best") is True:
        trainer.best.keep(rounds_done, buffers=evaluated)


def _finite(
    compute: Callable[[], Message],
    trainer: HostTrainer,
    savepoints: Mapping[str, TrainerState],
    observer: Observer,
) -> Message:
    """A message without NaN and Inf, as far as the stage can be rolled back."""

    def checked() -> Message:
        message = compute()
        if savepoints:  # otherwise `send` checks it
            trainer.check_sendable(message)
        return message

    return compute_finite(checked, trainer, savepoints, observer.diverged)


async def _receive_verdict(link: Link, round_: int, observer: Observer) -> dict[str, Any]:
    with observer.waiting():
        return expect(await link.receive(), Kind.VERDICT, round_).body or {}
