"""The guest's training loop: rounds, evaluations, checkpoints and verdicts.

A verdict is the guest's message to its hosts after an evaluation and at the end of a segment: stop,
or continue, and whether the evaluation was the best so far. With `method = "auto"` it contains the
next stage at the end of a segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from celu.engine.checkpointing import Checkpointer, ResumePoint
from celu.engine.evaluation import evaluate
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.observer import Observer
from celu.engine.outcome import Outcome, Timings
from celu.engine.plan import Plan
from celu.engine.schedule import Schedule, Segment
from celu.engine.state import TrainerState, compute_finite, enter_stage
from celu.errors import NonFiniteError
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect


@dataclass(frozen=True)
class _Judgement:
    """What follows from an evaluation, if there was one."""

    stops: bool = False
    is_best: bool = False  # of the evaluations of validation rows so far

    def to_body(self) -> dict[str, object]:
        """The verdict on it."""
        return {"stop": self.stops, **({"best": True} if self.is_best else {})}


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
            observer.start_segment()
        for round_ in range(rounds_done, segment.stop):
            loss = await _exchange_round(
                trainer, links, schedule, segment, round_, observer, savepoints
            )
            plan.observe_loss(round_, loss)
            if round_ == last:
                break
            evaluates = schedule.is_evaluation(round_ + 1)
            judgement = await _maybe_evaluate(
                trainer, links, schedule, segment, round_, plan, observer, savepoints
            )
            if judgement.stops:
                # The hosts have sent this Z without waiting for the verdict.
                await _receive_early(trainer, links, round_, segment.last_sent(round_ + 1))
                checkpointer.save_final(round_ + 1)
                allow_test_rows(trainer, links, schedule)
                await _send_verdict(links, round_, judgement.to_body())
                return round_ + 1
            checkpointer.maybe_save(round_ + 1, savepoints)
            if evaluates:
                await _send_verdict(links, round_, judgement.to_body())
            checkpointer.announce()
        timings = observer.timings(len(segment.measured), trainer.workset)
        judgement = await _maybe_evaluate(
            trainer, links, schedule, segment, last, plan, observer, savepoints
        )
        host_timings = await _receive_timings(links, segment) if plan.is_adaptive else ()
        timings = replace(timings, diverged=observer.pop_diverged())
        cycles = observer.cycles_s(segment.tuning.depth, len(segment.measured))
        outcome = trainer.agree(Outcome(segment, timings, host_timings, [], [], *cycles))
        next_ = None if judgement.stops else plan.next(outcome)
        rounds_done = segment.stop
        if next_ is None:
            checkpointer.save_final(rounds_done)
            allow_test_rows(trainer, links, schedule)
            await _send_verdict(links, last, replace(judgement, stops=True).to_body())
            return rounds_done
        checkpointer.maybe_save(rounds_done, savepoints)
        for host, link in links.items():  # before a host can act on the verdict
            link.allow(trainer.specs(host, next_.segment.tuning))
        body = {"next": next_.to_body()} if plan.is_adaptive else {}
        await _send_verdict(links, last, {**judgement.to_body(), **body})
        if plan.is_adaptive:
            observer.tuning_chosen(next_)
        checkpointer.announce()
        rounds_done, stage = next_.segment.start, next_
    return rounds_done


def allow_test_rows(trainer: GuestTrainer, links: Mapping[str, Link], schedule: Schedule) -> None:
    """Let hosts send Z of the test rows, by the contract's codecs, if they are scored at the end.

    It is called before the hosts learn that training has ended: a tensor may follow at once.
    """
    for host, link in links.items() if schedule.validates else ():
        link.allow(trainer.specs(host))


async def score_test_rows(
    trainer: GuestTrainer,
    links: Mapping[str, Link],
    schedule: Schedule,
    rounds: int,
    observer: Observer,
) -> dict[str, float]:
    """Score the test rows with the chosen weights, after the last of `rounds` rounds."""
    trainer.set_codecs()
    metrics = await evaluate(trainer, links, schedule, "test", rounds, observer)
    trainer.evaluator.check(metrics.deciding, rounds)
    observer.left_out(trainer.evaluator.undefined)
    return metrics.reported


async def _exchange_round(
    trainer: GuestTrainer,
    links: Mapping[str, Link],
    schedule: Schedule,
    segment: Segment,
    round_: int,
    observer: Observer,
    savepoints: Mapping[str, TrainerState],
) -> Tensor:
    if round_ == segment.measured.start:
        observer.start_measuring(trainer.workset)
    trainer.start_round(round_)
    if not schedule.local_steps_after_update:  # while the last dZ and the next Z are in flight
        _make_local_steps(trainer, segment, observer)
    with observer.waiting():
        await _receive_early(trainer, links, round_ - 1, round_)
    activations = [trainer.early[host].popleft() for host in links]
    with observer.computing():
        compute = partial(
            _compute_derivatives, trainer, round_, activations, checks=bool(savepoints)
        )
        loss, derivatives = compute_finite(compute, trainer, savepoints, observer.diverged)
        for link, derivative in zip(links.values(), derivatives, strict=True):
            await link.send(derivative)
        trainer.apply_update()  # after sending: the hosts wait for dZ, not for our update
        trainer.record(activations, derivatives)
    if schedule.local_steps_after_update:
        _make_local_steps(trainer, segment, observer)
    observer.round_done(round_, trainer.workset, trainer.lr, trainer.loss)
    return loss


def _compute_derivatives(
    trainer: GuestTrainer, round_: int, activations: list[Message], *, checks: bool
) -> tuple[Tensor, list[Message]]:
    """Loss and dZ; `checks` that dZ can be sent, before any of it is sent."""
    loss, derivatives = trainer.compute_derivatives(round_, activations)
    if checks:
        trainer.check_sendable(derivatives)
    return loss, derivatives


def _make_local_steps(trainer: GuestTrainer, segment: Segment, observer: Observer) -> None:
    _, R = segment.tuning.for_role("guest")
    with observer.local_steps():
        for _ in range(trainer.num_local_steps(R)):
            trainer.local_step()


async def _maybe_evaluate(
    trainer: GuestTrainer,
    links: Mapping[str, Link],
    schedule: Schedule,
    segment: Segment,
    round_: int,
    plan: Plan,
    observer: Observer,
    savepoints: Mapping[str, TrainerState],
) -> _Judgement:
    """Score held-out rows with the weights after `round_`, if due, and report the metrics.

    None are reported if they are NaN or Inf and the stage can be rolled back. The metrics that
    decide are those of the twin, if the guest has one. Only validation rows
    decide anything but whether the target is reached: test rows would no longer be held out.
    """
    if not schedule.is_evaluation(round_ + 1):
        return _Judgement()
    with observer.waiting():
        await _receive_early(trainer, links, round_, segment.last_sent(round_))
    evaluator = trainer.evaluator
    metrics = await evaluate(trainer, links, schedule, schedule.evaluated, round_, observer)
    deciding = metrics.deciding
    try:
        evaluator.check(deciding, round_ + 1)
    except NonFiniteError:
        if not savepoints:
            raise
        observer.diverged()
        return _Judgement()
    is_best = schedule.validates and evaluator.is_best(deciding, trainer.best.model)
    if is_best:
        trainer.best.keep(round_ + 1, evaluator.objective(deciding))
    else:
        trainer.best.count_worse()
    if schedule.validates:
        plan.observe_score(evaluator.objective(deciding))
    observer.left_out(evaluator.undefined)
    reached = evaluator.reached_target(deciding)
    stand_in = evaluator.stand_in(deciding) if schedule.validates else None
    observer.evaluated(round_, metrics.reported, reached, schedule.evaluated, is_best, stand_in)
    return _Judgement(reached or evaluator.is_out_of_patience(trainer.best.model), is_best)


async def _receive_early(
    trainer: GuestTrainer, links: Mapping[str, Link], done: int, until: int
) -> None:
    """Buffer the Z of the rounds after `done` up to `until`, as far as it has not arrived."""
    for host, link in links.items():
        early = trainer.early[host]
        for round_ in range(done + 1 + len(early), until + 1):
            early.append(expect(await link.receive(), Kind.ACTIVATION, round_))


async def _receive_timings(links: Mapping[str, Link], segment: Segment) -> tuple[Timings, ...]:
    reports = [
        expect(await link.receive(), Kind.REPORT, segment.stop - 1) for link in links.values()
    ]
    rounds = len(segment.measured)
    return tuple(Timings.from_body(report.body, rounds, report.sender) for report in reports)


async def _send_verdict(links: Mapping[str, Link], round_: int, verdict: dict[str, object]) -> None:
    for link in links.values():
        await link.send(Message(Kind.VERDICT, round_, body=verdict))
