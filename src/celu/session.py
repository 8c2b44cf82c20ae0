"""One party's whole conversation: compare contracts, train, say goodbye.

A session is a coroutine over links that are already open; it neither opens nor reads files.
Whatever goes wrong in it is told to the peers, as far as it may be, before it is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from celu.config.job import Choice, Job
from celu.data.table import Table
from celu.engine.auto import AutoPlan
from celu.engine.coding import Coding
from celu.engine.guest import GuestTrainer, train_guest
from celu.engine.host import HostTrainer, train_host
from celu.engine.observe import Emit, Observer
from celu.engine.plan import HostPlan, Plan, WrittenPlan, first_step
from celu.engine.schedule import Schedule
from celu.errors import ConfigError, DataError
from celu.handshake import compare, hello, say_goodbye, tell
from celu.party import Guest, Host
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect
from celu.transport.wire import VERSION

# At most this many rounds are reported one by one; longer runs report every n-th.
_REPORTS = 2000


@dataclass(frozen=True)
class Result:
    """What a party knows at the end: rounds done, and the guest's evaluations in order."""

    rounds: int
    local_steps: int
    bubbles: int
    evaluations: list[dict[str, float]]
    traffic: dict[str, int]
    choices: list[Choice]  # where the guest chose for itself: with these the run can be repeated


async def host_session(
    name: str,
    host: Host,
    job: Job,
    link: Link,
    emit: Emit,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """A host's part in a run; `clock` gives the seconds in its reports."""
    links = {link.peer: link}
    try:
        schedule = _schedule(name, job, host.train, host.test)
        await _handshake(name, job, schedule, host.train, host.test, links)
        emit("started", {"num_rounds": schedule.num_rounds})
        trainer = HostTrainer(name, host, job)
        see = Observer(emit, [link.traffic], schedule.num_rounds, _report_every(schedule), clock)
        plan = HostPlan(job, schedule)
        with closing(trainer.feed):
            rounds = await train_host(trainer, link, schedule, plan, see)
        await say_goodbye(links)
    except (Exception, KeyboardInterrupt) as error:
        await tell(links, error)
        raise
    return _result(rounds, trainer, see, [])


async def guest_session(
    name: str,
    guest: Guest,
    job: Job,
    links: Mapping[str, Link],
    emit: Emit,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """The guest's part in a run; `links` hold one for each host."""
    links = {host: links[host] for host in job.hosts}  # in the contract's order
    try:
        schedule = _schedule(name, job, guest.train, guest.test)
        if guest.train.labels is None or guest.test.labels is None:
            raise DataError(f"{name}: expected labels in the guest's training and test rows")
        known = ("loss", *guest.loss.metric_names)
        if job.evaluation.target is not None and job.evaluation.metric not in known:
            raise ConfigError(
                f"evaluation.metric: expected one that {name}'s loss gives ({', '.join(known)}), "
                f"got {job.evaluation.metric}"
            )
        if guest.bottom is None and not links:
            raise DataError(f"{name}: expected a bottom model or a host to learn from, got neither")
        await _handshake(name, job, schedule, guest.train, guest.test, links)
        emit("started", {"num_rounds": schedule.num_rounds})
        trainer = GuestTrainer(name, guest, job)
        traffic = [link.traffic for link in links.values()]
        see = Observer(emit, traffic, schedule.num_rounds, _report_every(schedule), clock)
        plan: Plan = AutoPlan(job, schedule) if job.auto else WrittenPlan(job, schedule)
        with closing(trainer.feed):
            rounds = await train_guest(trainer, links, schedule, plan, see)
        await say_goodbye(links)
    except (Exception, KeyboardInterrupt) as error:
        await tell(links, error)
        raise
    return _result(rounds, trainer, see, plan.choices)


def _schedule(name: str, job: Job, train: Table, test: Table) -> Schedule:
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
        test_rows=min(test.num_rows, job.evaluation.rows or test.num_rows),
        part_rows=job.batch_size,
    )


def _report_every(schedule: Schedule) -> int:
    return max(1, schedule.num_rounds // _REPORTS)


async def _handshake(
    name: str, job: Job, schedule: Schedule, train: Table, test: Table, links: Mapping[str, Link]
) -> None:
    """Refuse, by the name of the field, a peer that holds another contract."""
    ours = {
        "protocol": VERSION,
        **job.contract(),
        "train_rows": train.num_rows,
        "train_ids": train.commitment(),
        "test_rows": test.num_rows,
        "test_ids": test.commitment(),
    }
    greeting = hello(name, "run", ours)
    for link in links.values():
        await link.send(greeting)
    for link in links.values():
        compare(name, greeting, link.peer, await link.receive())
        link.allow(
            _specs(job, schedule, name, link.peer)
        )  # before READY: what follows it may be a tensor
    for link in links.values():
        await link.send(Message(Kind.READY))
    for link in links.values():
        expect(await link.receive(), Kind.READY)


def _specs(job: Job, schedule: Schedule, name: str, peer: str) -> dict[Kind, TensorSpec]:
    """What may arrive in the first segment; a trainer says what in later ones."""
    codecs = first_step(job, schedule).segment.tuning.codecs
    if name == job.guest:
        return Coding(job, peer, codecs).specs(Kind.ACTIVATION, Kind.TEST_ACTIVATION)
    return Coding(job, name, codecs).specs(Kind.DERIVATIVE)


def _result(
    rounds: int, trainer: HostTrainer | GuestTrainer, see: Observer, choices: list[Choice]
) -> Result:
    workset = trainer.workset
    return Result(
        rounds, workset.local_steps, workset.bubbles, see.evaluations, see.bytes(), choices
    )
