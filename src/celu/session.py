"""One party's part in a run: compare contracts, agree on the round to resume from, train, close.

A session is a coroutine over links that are already open. The only files it touches are its
checkpoints. Before an error is raised, its public message is sent to the peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

from celu.audit.result import Audit
from celu.checkpoint.agreement import Agreement, Inventory, agree
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.identity import RunIdentity
from celu.config.job import Choice, Job
from celu.engine.auditing import AuditOptions, with_canaries
from celu.engine.auto import AutoPlan
from celu.engine.checkpointing import Checkpointer, ResumePoint, max_apart
from celu.engine.guest_program import allow_test_rows, score_test_rows, train_guest
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.held_out import HeldOutMetrics
from celu.engine.host_program import send_test_rows, train_host
from celu.engine.host_trainer import HostTrainer
from celu.engine.naming import name_model, name_model_with_guest
from celu.engine.observer import Observer
from celu.engine.plan import FixedPlan, HostPlan, Plan
from celu.engine.schedule import Schedule
from celu.engine.spans import Spans
from celu.errors import CheckpointError, ConfigError, DataError
from celu.events import (
    Audited,
    Callback,
    CheckpointDamaged,
    TrainingResumed,
    TrainingStarted,
)
from celu.handshake import (
    check_contract,
    close_session,
    contract_differences,
    make_hello,
    report_failure,
)
from celu.label_map import LabelMap
from celu.model_identity import ModelIdentity
from celu.models.fit_labels import check_both_classes
from celu.models.losses import LOSSES, constant_loss
from celu.party import Guest, Host
from celu.result import Result
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect
from celu.transport.wire import VERSION

# At most this many rounds are reported one by one; longer runs report every n-th.
_REPORTS = 2000


async def host_session(
    name: str,
    host: Host,
    job: Job,
    link: Link,
    emit: Callback,
    clock: Callable[[], float] = time.monotonic,
    checkpoints: Checkpoints | None = None,
    audit: AuditOptions | None = None,
) -> Result:
    """Run a host's part; `clock` times its events and must be the clock of its link.

    With `checkpoints`, it takes checkpoints and resumes from the newest that all parties have.
    With `audit`, it measures what the run leaked, after the session has closed.
    """
    links = {link.peer: link}
    try:
        schedule = check_party(name, host, job)
        contract = contract_of(job, host)
        own, theirs = await _exchange_hellos(name, contract, links, checkpoints, emit)
        inventories = {**theirs, name: own}
        agree(link.peer, inventories, max_apart(job))  # do not rely on the guest to refuse
        ready = expect(await link.receive(), Kind.READY).body
        agreement = Agreement.from_body(link.peer, ready, name, inventories, max_apart(job))
        spans = Spans(clock)
        trainer = HostTrainer(name, host, job, spans)
        trainer.recorder = None if audit is None else audit.recorder(host.train)
        observer = Observer(
            emit, [link.traffic], schedule.num_rounds, _report_every(schedule), spans
        )
        plan = HostPlan(job, schedule)
        checkpointer = Checkpointer(job, checkpoints, trainer, plan, observer)
        with closing(trainer.loader), _flushing_on_error(checkpoints):
            resume_point = checkpointer.resume(agreement.round)
            if checkpoints is not None:
                checkpoints.start(RunIdentity(agreement.run, contract), agreement.round)
            await link.send(Message(Kind.READY))
            _announce(emit, schedule, resume_point)
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
    return _audited(result, audit.of_host(name, host, trainer.recorder), emit)


async def guest_session(
    name: str,
    guest: Guest,
    job: Job,
    links: Mapping[str, Link],
    emit: Callback,
    clock: Callable[[], float] = time.monotonic,
    checkpoints: Checkpoints | None = None,
    audit: AuditOptions | None = None,
) -> Result:
    """Run the guest's part, with one link for each host. See also `host_session`."""
    links = {host: links[host] for host in job.hosts}  # in the order of the job
    try:
        schedule = check_party(name, guest, job)
        contract = contract_of(job, guest)
        own, theirs = await _exchange_hellos(name, contract, links, checkpoints, emit)
        agreement = agree(name, {name: own, **theirs}, max_apart(job))
        spans = Spans(clock)
        recorder = None if audit is None else audit.recorder(guest.train)
        if recorder is not None:
            guest = with_canaries(guest, recorder.sample)
        trainer = GuestTrainer(name, guest, job, spans)
        trainer.recorder = recorder
        traffic = [link.traffic for link in links.values()]
        observer = Observer(emit, traffic, schedule.num_rounds, _report_every(schedule), spans)
        plan = _plan(job, schedule, guest)
        checkpointer = Checkpointer(job, checkpoints, trainer, plan, observer)
        with closing(trainer.loader), _flushing_on_error(checkpoints):
            resume_point = checkpointer.resume(agreement.round)
            if checkpoints is not None:
                checkpoints.start(RunIdentity(agreement.run, contract), agreement.round)
            allow_test_rows(trainer, links, schedule)  # if the run is done already
            for link in links.values():
                if resume_point.stage is not None:  # before READY: a tensor may follow it at once
                    link.allow(trainer.specs(link.peer, resume_point.stage.segment.tuning))
                await link.send(Message(Kind.READY, body=agreement.to_body()))
            for link in links.values():
                expect(await link.receive(), Kind.READY)
            _announce(emit, schedule, resume_point, trainer.evaluator.lower_is_better)
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
    result = _result(rounds, trainer, observer, plan.choices, model, best_round, mean_z, test)
    if audit is None or trainer.recorder is None:
        return result
    return _audited(result, audit.of_guest(name, guest, job, trainer.recorder), emit)


def _audited(result: Result, audit: Audit, emit: Callback) -> Result:
    emit(Audited(rows=audit.rows, seconds=audit.seconds))
    return replace(result, audit=audit)


def check_party(name: str, party: Guest | Host, job: Job) -> Schedule:
    """What a run needs of a party, as far as it is known before the peers are: its schedule.

    Raises DataError for too few rows, missing labels and weights that cannot be used, ConfigError
    for metrics that do not fit the loss, or for patience without validation rows.
    """
    schedule = _schedule(name, job, party)
    if job.evaluation.patience is not None and not schedule.validates:
        raise ConfigError(
            f"evaluation.patience: expected validation rows at {name}, got none; set "
            "split.validation in schema.toml and prepare the rows again, pass validation rows in "
            "Python, or remove patience"
        )
    parts = {"training": party.train, "validation": party.validation, "test": party.test}
    if isinstance(party, Host):
        if any(rows is not None and rows.weights is not None for rows in parts.values()):
            raise DataError(
                f"{name}: expected weights of rows at the guest only, which has the loss"
            )
        return schedule
    used = {"validation": schedule.validation_rows, "test": schedule.test_rows}
    for part, rows in parts.items():
        if rows is None:
            continue
        if rows.labels is None:
            raise DataError(f"{name}: expected labels in the guest's {part} rows, got none")
        weights = None if rows.weights is None else rows.weights[: used.get(part)]
        if weights is not None and len(weights) and not bool(weights.any()):
            raise DataError(f"{name}: weights: expected some above 0 in {part} rows, got only 0")
    metrics = HeldOutMetrics(party.loss, party.metrics, job.evaluation.metric)
    metrics.check(has_target=job.evaluation.target is not None)
    for part, number in used.items():
        rows = parts[part]
        if rows is not None and rows.labels is not None:
            labels = rows.labels[:number]
            check_both_classes(party.label_map, party.loss, part, labels, job.evaluation.metric)
    if party.bottom is None and not job.hosts:
        raise DataError(f"{name}: expected a bottom model or at least one host, got neither")
    return schedule


def _schedule(name: str, job: Job, party: Guest | Host) -> Schedule:
    train, test, validation = party.train, party.test, party.validation
    validation_rows = 0 if validation is None else validation.num_rows
    limit = job.evaluation.rows
    rounds_per_epoch = train.num_rows // job.batch_size
    if rounds_per_epoch == 0:
        raise DataError(
            f"{name}: expected at least one batch of {job.batch_size} training rows, "
            f"got {train.num_rows}"
        )
    return Schedule(
        num_rounds=job.num_rounds(rounds_per_epoch),
        rounds_per_epoch=rounds_per_epoch,
        evaluate_every=job.evaluation.every,
        # Where they are scored only once, all of them are.
        test_rows=test.num_rows if validation_rows else min(test.num_rows, limit or test.num_rows),
        validation_rows=min(validation_rows, limit or validation_rows),
        part_rows=job.batch_size,
        local_steps_after_update=job.method.local_step_order == "after-update",
    )


def _plan(job: Job, schedule: Schedule, guest: Guest) -> Plan:
    if not job.auto:
        return FixedPlan(job, schedule)
    constant = None  # with weights it is another
    is_weighted = guest.train.weights is not None or guest.class_weights is not None
    if guest.loss in LOSSES.values() and guest.train.labels is not None and not is_weighted:
        labels = guest.label_map.for_loss(guest.train.labels)
        constant = constant_loss(guest.loss.prediction, labels).of_batch(job.batch_size)
    return AutoPlan(job, schedule, constant)


def _report_every(schedule: Schedule) -> int:
    return max(1, schedule.num_rounds // _REPORTS)


def contract_of(job: Job, party: Guest | Host) -> dict[str, Any]:
    """The fields that must be equal at all parties; those of validation rows if there are any."""
    parts = {"train": party.train, "test": party.test}
    if party.validation is not None and party.validation.num_rows:
        parts["validation"] = party.validation
    rows = {f"{part}_rows": dataset.num_rows for part, dataset in parts.items()}
    ids = {f"{part}_ids": dataset.commitment for part, dataset in parts.items()}
    return {"protocol": VERSION, **job.contract(), **rows, **ids}


async def _exchange_hellos(
    name: str,
    contract: Mapping[str, Any],
    links: Mapping[str, Link],
    checkpoints: Checkpoints | None,
    emit: Callback,
) -> tuple[Inventory, dict[str, Inventory]]:
    """Exchange contracts, and the rounds that each party has a checkpoint of.

    Raises ContractMismatch, which names the fields, for a peer with another contract.
    """
    own = Inventory() if checkpoints is None else inventory_of(contract, checkpoints, emit)
    hello = make_hello(name, "run", contract, **own.to_body())
    for link in links.values():
        await link.send(hello)
    theirs = {}
    for link in links.values():
        body = check_contract(name, hello, link.peer, await link.receive())
        theirs[link.peer] = Inventory.from_body(link.peer, body)
    return own, theirs


def inventory_of(
    contract: Mapping[str, Any], checkpoints: Checkpoints, emit: Callback
) -> Inventory:
    """Our checkpoints; raises CheckpointError if the run in the folder has another contract."""
    identity, rounds = checkpoints.scan()
    for round_, why in checkpoints.damaged.items():
        emit(CheckpointDamaged(round=round_, why=why))
    if identity is None:
        return Inventory()
    changed = contract_differences("the run", identity.contract, "job.toml or the data", contract)
    if changed:
        raise CheckpointError(
            "this folder's run has another contract: " + "; ".join(changed[:10]) + ". Restore the "
            "original settings, or start a new run with another --out at all parties"
        )
    return Inventory(identity.run, tuple(rounds), tuple(checkpoints.superseded_rounds()))


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


def _announce(
    emit: Callback,
    schedule: Schedule,
    resume_point: ResumePoint,
    lower_is_better: Sequence[str] = (),
) -> None:
    fields: dict[str, Any] = {"num_rounds": schedule.num_rounds}
    if lower_is_better:
        fields["lower_is_better"] = list(lower_is_better)
    if resume_point.round == 0:
        emit(TrainingStarted(**fields))
    else:
        emit(TrainingResumed(round=resume_point.round, **fields))


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
    )
