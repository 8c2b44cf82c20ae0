"""One party's part in a run: compare contracts, agree on the round to resume from, train, close.

A session is a coroutine over links that are already open. The only files it touches are its
checkpoints. Before an error is raised, its public message is sent to the peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from celu.audit.result import Audit
from celu.checkpoint.agreement import Agreement, Inventory, agree
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.identity import RunIdentity
from celu.config.job import Choice, Job
from celu.engine.auditing import AuditOptions, with_canaries
from celu.engine.auto import AutoPlan
from celu.engine.checkpointing import Checkpointer, ResumePoint, max_apart
from celu.engine.device import computing_on, device_of
from celu.engine.graphs import GraphOptions
from celu.engine.guest_program import allow_test_rows, score_test_rows, train_guest
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_program import send_test_rows, train_host
from celu.engine.host_trainer import HostTrainer
from celu.engine.naming import name_model, name_model_with_guest
from celu.engine.observer import Observer
from celu.engine.plan import FixedPlan, HostPlan, Plan
from celu.engine.promises import promises
from celu.engine.schedule import Schedule
from celu.engine.setup import RunSetup, RunTerms, check_members
from celu.engine.spans import Spans
from celu.engine.twin import without_failing_metrics
from celu.errors import CheckpointError
from celu.events import (
    Audited,
    Callback,
    Protected,
    TrainingResumed,
    TrainingStarted,
    Warned,
)
from celu.handshake import (
    check_contract,
    close_session,
    make_hello,
    report_failure,
)
from celu.label_map import LabelMap
from celu.model_identity import ModelIdentity
from celu.models.losses import LOSSES, constant_loss
from celu.party import Guest, Host
from celu.ranks.slices import ONE, Slices
from celu.result import Result
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect

# At most this many rounds are reported one by one; longer runs report every n-th.
_REPORTS = 500

_Party = TypeVar("_Party", Guest, Host)
_P = ParamSpec("_P")
_Session = Callable[Concatenate[str, _Party, _P], Coroutine[Any, Any, Result]]


def _on_own_device(session: _Session[_Party, _P]) -> _Session[_Party, _P]:
    """The session, during which the GPU of the party's modules is the current one."""

    @wraps(session)
    async def run(name: str, party: _Party, /, *arguments: _P.args, **options: _P.kwargs) -> Result:
        modules = [party.bottom, party.top if isinstance(party, Guest) else None]
        return await computing_on(
            device_of(m for m in modules if m is not None),
            session(name, party, *arguments, **options),
        )

    return run


@_on_own_device
async def host_session(
    name: str,
    host: Host,
    job: Job,
    link: Link,
    emit: Callback,
    clock: Callable[[], float] = time.monotonic,
    checkpoints: Checkpoints | None = None,
    terms: RunTerms | None = None,
    graphs: bool = True,
    audit: AuditOptions | None = None,
    ranks: Slices = ONE,
) -> Result:
    """Run a host's part; `clock` times its events and must be the clock of its link.

    With `checkpoints`, it takes checkpoints and resumes from the newest that all parties have.
    `terms` are what the parties agree on besides the job. With `graphs`, its steps on a GPU are
    captured as CUDA graphs, where that is possible.
    With `audit`, it measures what the run leaked, after the session has closed. `ranks` are this
    process among those of its party, which all run this.
    """
    links = {link.peer: link}
    try:
        setup = RunSetup.of(name, host, job, terms, checkpoints)
        job, schedule = setup.job, setup.schedule
        own, theirs = await _exchange_hellos(name, setup, links, checkpoints, emit)
        inventories = {**theirs, name: own}
        agree(link.peer, inventories, max_apart(job))  # do not rely on the guest to refuse
        ready = expect(await link.receive(), Kind.READY).body
        agreement = Agreement.from_body(link.peer, ready, name, inventories, max_apart(job))
        spans = Spans(clock)
        trainer = HostTrainer(name, host, job, spans, _graph_options(graphs, emit), ranks)
        trainer.recorder = None if audit is None else audit.recorder(host.train)
        observer = Observer(
            emit, [link.traffic], schedule.num_rounds, _report_every(schedule), spans
        )
        plan = HostPlan(job, schedule)
        checkpointer = Checkpointer(job, checkpoints, trainer, plan, observer, ranks.size)
        with closing(trainer), _flushing_on_error(checkpoints):
            shorter = setup.shorter_rounds(checkpoints, agreement.round)
            resume_point = checkpointer.resume(agreement.round, shorter)
            if checkpoints is not None:
                checkpoints.start(RunIdentity(agreement.run, setup.contract), agreement.round)
            await link.send(Message(Kind.READY))
            _announce(emit, job, schedule, resume_point, ranks.size)
            rounds = await train_host(
                trainer, link, schedule, plan, observer, checkpointer, resume_point
            )
            checkpointer.flush()
        best_round = trainer.best.restore()
        if schedule.validates:
            await send_test_rows(trainer, link, schedule, rounds, observer)
        model = await name_model_with_guest(
            name, job, link, trainer, agreement.run, best_round or rounds
        )
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await report_failure(links, error)
        raise
    result = _result(rounds, trainer, observer, [], model, best_round)
    if audit is None or trainer.recorder is None:
        return result
    found = audit.of_host(name, host, trainer.recorder)
    return _audited(result, found, promises(job, schedule), emit)


@_on_own_device
async def guest_session(
    name: str,
    guest: Guest,
    job: Job,
    links: Mapping[str, Link],
    emit: Callback,
    clock: Callable[[], float] = time.monotonic,
    checkpoints: Checkpoints | None = None,
    terms: RunTerms | None = None,
    graphs: bool = True,
    audit: AuditOptions | None = None,
    ranks: Slices = ONE,
) -> Result:
    """Run the guest's part, with one link for each host. See also `host_session`."""
    links = {host: links[host] for host in job.hosts}  # in the order of the job
    try:
        setup = RunSetup.of(name, guest, job, terms, checkpoints)
        job, schedule = setup.job, setup.schedule
        own, theirs = await _exchange_hellos(name, setup, links, checkpoints, emit)
        agreement = agree(name, {name: own, **theirs}, max_apart(job))
        spans = Spans(clock)
        recorder = None if audit is None else audit.recorder(guest.train)
        if recorder is not None:
            guest = with_canaries(guest, recorder.sample)
        if job.privacy.label_epsilon is not None and links:
            guest = without_failing_metrics(guest, lambda text: emit(Warned(message=text)))
        trainer = GuestTrainer(name, guest, job, spans, _graph_options(graphs, emit), ranks)
        trainer.recorder = recorder
        traffic = [link.traffic for link in links.values()]
        observer = Observer(emit, traffic, schedule.num_rounds, _report_every(schedule), spans)
        plan = _plan(job, schedule, guest)
        checkpointer = Checkpointer(job, checkpoints, trainer, plan, observer, ranks.size)
        with closing(trainer), _flushing_on_error(checkpoints):
            shorter = setup.shorter_rounds(checkpoints, agreement.round)
            resume_point = checkpointer.resume(agreement.round, shorter)
            if checkpoints is not None:
                checkpoints.start(RunIdentity(agreement.run, setup.contract), agreement.round)
            allow_test_rows(trainer, links, schedule)  # if the run is done already
            for link in links.values():
                if resume_point.stage is not None:  # before READY: a tensor may follow it at once
                    link.allow(trainer.specs(link.peer, resume_point.stage.segment.tuning))
                await link.send(Message(Kind.READY, body=agreement.to_body()))
            for link in links.values():
                expect(await link.receive(), Kind.READY)
            lower_is_better = trainer.evaluator.lower_is_better
            if guest.bottom is None and guest.train.inputs:
                emit(Warned(message=_unused(name, guest.train.inputs)))
            _announce(emit, job, schedule, resume_point, ranks.size, lower_is_better)
            rounds = await train_guest(
                trainer, links, schedule, plan, observer, checkpointer, resume_point
            )
            checkpointer.flush()
        best_round, test = trainer.best.restore(), {}
        if schedule.validates:
            test = await score_test_rows(trainer, links, schedule, rounds, observer)
            observer.tested(best_round or rounds, test)
        model, mean_z = await name_model(
            name, job, links, trainer, agreement.run, best_round or rounds
        )
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await report_failure(links, error)
        raise
    if trainer.twin is not None:
        trainer.check_own_model()
    result = _result(rounds, trainer, observer, plan.choices, model, best_round, mean_z, test)
    if audit is None or trainer.recorder is None:
        return result
    found = audit.of_guest(name, guest, job, trainer.recorder)
    return _audited(result, found, promises(job, schedule), emit)


def _audited(result: Result, audit: Audit, promised: list[str], emit: Callback) -> Result:
    audit = audit.model_copy(update={"promises": promised})
    emit(Audited(rows=audit.rows, seconds=audit.seconds))
    return replace(result, audit=audit)


def _plan(job: Job, schedule: Schedule, guest: Guest) -> Plan:
    if not job.auto:
        return FixedPlan(job, schedule)
    constant = None  # with weights it is another, and hosts see what depends on it
    is_other = guest.train.weights is not None or guest.class_weights is not None
    is_other = is_other or job.privacy.label_epsilon is not None
    if guest.loss in LOSSES.values() and guest.train.labels is not None and not is_other:
        labels = guest.label_map.for_loss(guest.train.labels)
        constant = constant_loss(guest.loss.prediction, labels).of_batch(job.batch_size)
    return AutoPlan(job, schedule, constant)


def _report_every(schedule: Schedule) -> int:
    return max(1, schedule.num_rounds // _REPORTS)


async def _exchange_hellos(
    name: str,
    setup: RunSetup,
    links: Mapping[str, Link],
    checkpoints: Checkpoints | None,
    emit: Callback,
) -> tuple[Inventory, dict[str, Inventory]]:
    """Exchange contracts, and the rounds that each party has a checkpoint of.

    Raises ContractMismatch, which names the fields, for a peer with another contract, or whose
    modules have another number of members.
    """
    own = Inventory() if checkpoints is None else setup.inventory(checkpoints, emit)
    members = {} if setup.members is None else {"members": setup.members}
    hello = make_hello(name, "run", setup.contract, **own.to_body(), **members)
    for link in links.values():
        await link.send(hello)
    theirs = {}
    for link in links.values():
        body = check_contract(name, hello, link.peer, await link.receive())
        check_members(name, setup.members, link.peer, body.get("members"))
        theirs[link.peer] = Inventory.from_body(link.peer, body)
    return own, theirs


@contextmanager
def _flushing_on_error(checkpoints: Checkpoints | None) -> Iterator[None]:
    """If an error ends the run, wait for the checkpoint that is being written."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        if checkpoints is not None:
            with suppress(CheckpointError):  # the first error is the one to report
                checkpoints.flush()
        raise


def _unused(name: str, inputs: Iterable[str]) -> str:
    return (
        f"the inputs {', '.join(sorted(inputs))} of {name} are not used, since it has no bottom; "
        "pass celu.Guest a bottom, or rows without inputs"
    )


def _graph_options(enabled: bool, emit: Callback) -> GraphOptions:
    return GraphOptions(enabled, lambda message: emit(Warned(message=message)))


def _announce(
    emit: Callback,
    job: Job,
    schedule: Schedule,
    resume_point: ResumePoint,
    slices: int,
    lower_is_better: Sequence[str] = (),
) -> None:
    fields: dict[str, Any] = {"num_rounds": schedule.num_rounds}
    if lower_is_better:
        fields["lower_is_better"] = list(lower_is_better)
    for promise in promises(job, schedule):
        emit(Protected(promise=promise))
    if resume_point.round == 0:
        emit(TrainingStarted(**fields))
    else:
        emit(TrainingResumed(round=resume_point.round, **fields))
        if resume_point.slices not in (None, slices):
            emit(
                Warned(
                    message=f"the run was in {resume_point.slices} slices of a batch, and resumes "
                    f"in {slices}: sums are added in another order, so from round "
                    f"{resume_point.round} on its bits differ from those of an undisturbed run"
                )
            )


def _result(
    rounds: int,
    trainer: HostTrainer | GuestTrainer,
    observer: Observer,
    choices: list[Choice],
    model: ModelIdentity,
    best_round: int | None,
    mean_z: dict[str, list[float]] | None = None,
    test: dict[str, float] | None = None,
) -> Result:
    workset = trainer.workset
    return Result(
        rounds,
        workset.local_steps,
        workset.bubbles,
        observer.evaluations,
        observer.bytes(),
        choices,
        model,
        mean_z or {},
        trainer.label_map if isinstance(trainer, GuestTrainer) else LabelMap(),
        best_round,
        test or {},
        trainer.evaluator.held_out if isinstance(trainer, GuestTrainer) else None,
        own_weights=_own_weights(trainer),
    )


def _own_weights(trainer: HostTrainer | GuestTrainer) -> str | None:
    """The digest of a guest's weights, if the model's identity has that of its twin."""
    if isinstance(trainer, HostTrainer) or trainer.twin is None:
        return None
    return trainer.digest()
