"""The guest's training loop: rounds, evaluations, checkpoints and verdicts.

A verdict is the guest's message to its hosts at the end of a segment: stop, or continue. With
`method = "auto"` it contains the next stage.
"""

from __future__ import annotations

from collections.abc import Mapping

from celu.engine.checkpointing import Checkpointer, ResumePoint
from celu.engine.evaluation import evaluate
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.observer import Observer
from celu.engine.outcome import Outcome, Timings
from celu.engine.plan import Plan
from celu.engine.schedule import Schedule, Segment
from celu.engine.state import TrainerState, enter_stage
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect


async def train_guest(
    trainer: GuestTrainer,
    links: Mapping[str, Link],
    schedule: Schedule,
    plan: Plan,
    observer: Observer,
    checkpointer: Checkpointer,
    resume_point: ResumePoint,
) -> int:
    """Train from a resume point to the end; returns the number of rounds done."""
    savepoints: dict[str, TrainerState] = {}
    rounds_done, stage = resume_point.round, resume_point.stage
    if stage is not None and plan.is_adaptive and 0 < rounds_done == stage.segment.start:
        observer.tuning_chosen(stage)  # the interrupted attempt may not have reported it
    while stage is not None:
        segment, last = stage.segment, stage.segment.stop - 1
        if rounds_done == segment.start:
            enter_stage(stage, trainer, savepoints)
        fresh_scores: list[float] = []
        for round_ in range(rounds_done, segment.stop):
            await _exchange_round(trainer, links, segment, round_, observer)
            if segment.scores_fresh_batches:
                fresh_scores.append(trainer.score_fresh_batch())
            if round_ < last:
                checkpointer.maybe_save(round_ + 1, savepoints)
                checkpointer.announce()
        timings = observer.timings(len(segment.measured), trainer.workset)
        metrics: dict[str, float] = {}
        if segment.evaluates:
            # An evaluation that only the plan asks for counts as training time.
            with observer.evaluating(counted=schedule.is_evaluation(segment.stop)):
                metrics = await evaluate(trainer, links, schedule, last, observer)
        target_reached = trainer.evaluator.reached_target(metrics)
        if metrics:
            observer.evaluated(last, metrics, target_reached)
        host_timings = await _receive_timings(links, segment) if plan.is_adaptive else ()
        held_out = trainer.evaluator.objective(metrics) if metrics else None
        outcome = Outcome(segment, held_out, fresh_scores, timings, host_timings)
        next_ = None if target_reached else plan.next(outcome)
        rounds_done = segment.stop
        if next_ is None:
            checkpointer.save_final(rounds_done)
            await _send_verdict(links, last, {"stop": True})
            return rounds_done
        checkpointer.maybe_save(rounds_done, savepoints)
        for host, link in links.items():  # before a host can act on the verdict
            link.allow(trainer.specs(host, next_.segment.tuning))
        body = {"next": next_.to_body()} if plan.is_adaptive else {}
        await _send_verdict(links, last, {"stop": False, **body})
        if plan.is_adaptive:
            observer.tuning_chosen(next_)
        checkpointer.announce()
        rounds_done, stage = next_.segment.start, next_
    return rounds_done


async def _exchange_round(
    trainer: GuestTrainer,
    links: Mapping[str, Link],
    segment: Segment,
    round_: int,
    observer: Observer,
) -> None:
    _, R = segment.tuning.for_role("guest")
    if round_ == segment.measured.start:
        observer.start_measuring(trainer.workset)
    with observer.local_steps():  # while the last dZ and the next Z are in flight
        for _ in range(R - 1):
            trainer.local_step()
    with observer.waiting():
        activations = [
            expect(await link.receive(), Kind.ACTIVATION, round_) for link in links.values()
        ]
    with observer.computing():
        loss, derivatives = trainer.compute_derivatives(round_, activations)
        for link, derivative in zip(links.values(), derivatives, strict=True):
            await link.send(derivative)
        trainer.apply_update()  # after sending: the hosts wait for dZ, not for our update
    observer.round_done(round_, trainer.workset, loss)


async def _receive_timings(links: Mapping[str, Link], segment: Segment) -> tuple[Timings, ...]:
    reports = [
        expect(await link.receive(), Kind.REPORT, segment.stop - 1) for link in links.values()
    ]
    return tuple(Timings.from_body(report.body, len(segment.measured)) for report in reports)


async def _send_verdict(links: Mapping[str, Link], round_: int, verdict: dict[str, object]) -> None:
    for link in links.values():
        await link.send(Message(Kind.VERDICT, round_, body=verdict))
