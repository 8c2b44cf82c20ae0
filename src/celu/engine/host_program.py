"""A host's training loop: rounds, test activations, checkpoints and the guest's verdicts."""

from __future__ import annotations

from celu.engine.checkpointing import Checkpointer, ResumePoint
from celu.engine.host_trainer import HostTrainer
from celu.engine.observer import Observer
from celu.engine.plan import HostPlan
from celu.engine.schedule import Schedule, Segment
from celu.engine.state import TrainerState, enter_stage
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
        for round_ in range(rounds_done, segment.stop):
            await _exchange_round(trainer, link, segment, round_, observer)
            if round_ < last:
                checkpointer.maybe_save(round_ + 1, savepoints)
                checkpointer.announce()
        timings = observer.timings(len(segment.measured), trainer.workset)
        if segment.evaluates:
            with observer.evaluating(counted=schedule.is_evaluation(segment.stop)):
                for part, start, stop in schedule.test_parts():
                    await link.send(trainer.compute_test_activation(last, part, start, stop))
        if plan.follows_guest:
            await link.send(Message(Kind.REPORT, last, body=timings.to_body()))
        with observer.waiting():
            verdict = expect(await link.receive(), Kind.VERDICT, last).body or {}
        rounds_done = segment.stop
        if verdict.get("stop") is True:
            checkpointer.save_final(rounds_done)
            return rounds_done
        stage = plan.next(verdict)
        checkpointer.maybe_save(rounds_done, savepoints)
        checkpointer.announce()
        rounds_done = stage.segment.start
    return rounds_done


async def _exchange_round(
    trainer: HostTrainer, link: Link, segment: Segment, round_: int, observer: Observer
) -> None:
    _, R = segment.tuning.for_role("host")
    if round_ == segment.measured.start:
        observer.start_measuring(trainer.workset)
    with observer.computing():
        for ahead in segment.sends_in(round_):
            await link.send(trainer.compute_activation(ahead))
    with observer.local_steps():  # while Z is in flight and dZ is computed and returned
        for _ in range(R - 1):
            trainer.local_step()
    with observer.waiting():
        derivative = expect(await link.receive(), Kind.DERIVATIVE, round_)
    with observer.computing():
        trainer.update(round_, derivative)
    observer.round_done(round_, trainer.workset, None)
