"""From settings files to a running party: read its rows, build its modules, open its links."""

from __future__ import annotations

import ctypes
import datetime as dt
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.config.party import GatewaySettings, PartySettings
from celu.config.replay import replay_toml
from celu.data.alignment import Alignment, read_alignment, write_alignment
from celu.data.dataset import Dataset
from celu.data.memory_map import StoreDatasets, open_datasets
from celu.data.store import PARTS, open_store
from celu.data.tags import ascending
from celu.doctor.diagnosis import diagnose_guest, diagnose_hosts
from celu.doctor.facts import LinkFacts, gather_facts
from celu.doctor.machine import read_certificates
from celu.doctor.measure import ProbePlan
from celu.doctor.probes import Watch
from celu.engine.coding import Coding
from celu.engine.local import seed_step
from celu.errors import CeluError, CheckpointError, ConfigError, DataError, PeerRestarted
from celu.events import Callback, Connected, DataOpened, Restarted, Warned, ignore
from celu.models.building import BOTTOMS, TOPS, build_module, find_loss
from celu.party import Guest, Host
from celu.psi.protocol import Work, align_guest, align_host
from celu.psi.workers import Workers
from celu.run_folder import RunFolder
from celu.session import Result, guest_session, host_session
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.emulation import LinkEmulator
from celu.transport.link import run_blocking
from celu.transport.message import TrafficBothWays
from celu.transport.preflight import Gateway


def load_party(
    settings: PartySettings, job: Job, folder: Path, rows: StoreDatasets | None = None
) -> Host | Guest:
    """A party's rows and modules; `folder` is searched first for modules of the user's own.

    `rows` are read from the files of the settings unless given.

    The weights are a function of (seed, party), so a run can be repeated to the bit. Raises
    ConfigError, DataError, AlignmentError or ModelError.
    """
    device = _device(settings.device)
    rows = rows or read_rows(settings)
    train, test = (_to_device(table, job, device) for table in (rows.train, rows.test))
    model = settings.model
    guest_width = model.z_width or next((h.z_width for h in job.hosts.values()), 64)
    own_width = job.hosts[settings.name].z_width if settings.role == "host" else guest_width
    seed_step(job.seed, settings.name, 0, 0)
    bottom = None
    if model.bottom is not None:
        facts = {
            "z_width": own_width,
            "columns": {name: t.shape[1] for name, t in train.inputs.items()},
            "sizes": train.sizes,
        }
        bottom = build_module(
            model.bottom.use,
            model.bottom.options,
            facts,
            built_in=BOTTOMS,
            what="model.bottom",
            folder=folder,
        ).to(device)
    if settings.role == "host":
        assert bottom is not None  # settings are checked: a host brings one
        return Host(bottom=bottom, train=train, test=test)
    assert model.top is not None and model.loss is not None  # likewise
    widths = ([guest_width] if bottom is not None else []) + [h.z_width for h in job.hosts.values()]
    top = build_module(
        model.top.use,
        model.top.options,
        {"z_widths": widths},
        built_in=TOPS,
        what="model.top",
        folder=folder,
    ).to(device)
    return Guest(top=top, loss=find_loss(model.loss, folder), train=train, test=test, bottom=bottom)


def run_party(
    settings: PartySettings,
    job: Job,
    folder: Path,
    run: RunFolder,
    listening: Callable[[int], None],
) -> Result:
    """Run one party to its end over the network, recorded in `run`; raises what goes wrong.

    It goes on from the checkpoints in the run's folder, and begins again by itself from them where
    a peer's process was started anew.
    """
    keep_freed_memory()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        rows = read_rows(settings)
        for warning in rows.warnings:
            run.emit(Warned(message=warning))
        run.emit(
            DataOpened(
                schema_digest=rows.schema,
                train_rows=rows.train.num_rows,
                test_rows=rows.test.num_rows,
            )
        )
        while True:
            party = load_party(settings, job, folder, rows)
            try:
                result = _run_once(settings, job, party, run, listening)
                break
            except PeerRestarted as error:
                run.emit(Restarted(message=str(error)))
        run.save_weights({"bottom": party.bottom, "top": getattr(party, "top", None)})
        if result.choices:
            run.write("replay.toml", replay_toml(job, result.choices))
        run.finish({"status": "done", **asdict(result), "choices": len(result.choices)})
        return result
    except BaseException as error:
        message = {"message": str(error)} if isinstance(error, CeluError) else {}
        with suppress(CheckpointError):  # the first error is the one to tell of
            run.finish({"status": type(error).__name__, **message})
        raise


def _run_once(
    settings: PartySettings,
    job: Job,
    party: Host | Guest,
    run: RunFolder,
    listening: Callable[[int], None],
) -> Result:
    """One conversation with the peers, from their coming to goodbye."""
    checkpoints = Checkpoints(run.path)
    checkpoints.find()  # now, while no peer waits
    with open_links(_endpoint(settings, run.notice), listening) as links:
        run.emit(Connected(peers=sorted(links), secure=not settings.insecure))
        if isinstance(party, Guest):
            session = guest_session(
                settings.name, party, job, links, run.emit, checkpoints=checkpoints
            )
        else:
            session = host_session(
                settings.name, party, job, links[job.guest], run.emit, checkpoints=checkpoints
            )
        return run_blocking(session)


def align_party(
    settings: PartySettings,
    job: Job,
    listening: Callable[[int], None],
    emit: Callback,
) -> tuple[Alignment, dict[str, TrafficBothWays]]:
    """Find the rows that all parties have, and write the alignment; also what crossed each link.

    Interrupted, it goes on from where it was when it is started again; so does the other side, by
    itself. Raises ConfigError, DataError, and what `celu.psi` raises.
    """
    if settings.data.alignment is None:
        raise ConfigError("data.alignment: expected a folder to write to, got aligned = true")
    store = open_store(settings.data.store)
    parts = {part: store.tags(part) for part in PARTS}
    tags = np.concatenate(list(parts.values()))
    order = ascending(tags)
    split = store.schema.split
    terms = {
        "guest": job.guest,
        "hosts": sorted(job.hosts),
        "split.seed": split.seed,
        "split.test": split.test,
    }
    folder = settings.data.alignment
    with Workers(settings.threads or os.cpu_count() or 1) as workers:
        work = Work(folder.with_name(f".{folder.name}.work"), workers)
        while True:
            try:
                with open_links(_endpoint(settings, emit), listening) as links:
                    emit(Connected(peers=sorted(links), secure=not settings.insecure))
                    if settings.role == "guest":
                        program = align_guest(settings.name, links, tags[order], terms, work, emit)
                    else:
                        link = links[job.guest]
                        program = align_host(settings.name, link, tags[order], terms, work, emit)
                    found = run_blocking(program)
                    traffic = {name: link.traffic for name, link in links.items()}
                    break
            except PeerRestarted as error:
                emit(Restarted(message=str(error)))
    rows = order[found.rows]
    first_test = len(parts["train"])
    alignment = write_alignment(
        folder,
        store,
        {"train": rows[rows < first_test], "test": rows[rows >= first_test] - first_test},
        peers=found.sizes,
        common=found.common,
    )
    return alignment, traffic


def diagnose_party(
    settings: PartySettings,
    job: Job,
    plan: ProbePlan,
    listening: Callable[[int], None],
    say: Callable[[str], None],
) -> list[LinkFacts]:
    """Measure the link to each peer, and gather what advice about it rests on.

    Raises ConfigError, CertificateError, and what `celu.doctor` raises.
    """
    if not settings.peers:
        raise ConfigError("peers: expected at least one, to measure the link to it, got none")
    for host in job.hosts:
        Coding(job, host)  # names a codec that does not exist before anybody connects
    endpoint = _endpoint(settings)
    certificates = []
    if endpoint.keys is not None:
        certificates = read_certificates(settings.name, endpoint.keys, dt.datetime.now(dt.UTC))
    with open_links(endpoint, listening) as links:
        if settings.role == "guest":
            program = diagnose_hosts(settings.name, job, links, plan, Watch(), say)
        else:
            program = diagnose_guest(settings.name, job, links[job.guest], Watch(), say)
        examined = run_blocking(program)
    return [gather_facts(settings, job, found, certificates) for found in examined.values()]


def keep_freed_memory() -> None:
    """Have the C library keep large blocks that are freed, where it can be told to (glibc).

    Every step frees megabytes and asks for them again. Given back to the kernel in between, they
    return as page faults, which show in a step's time. It changes the whole process, so it is for
    one that is ours alone, not for a program that imports celu.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # names of malloc.h
    mallopt(mmap_threshold, 32 << 20)  # the largest that glibc takes
    mallopt(trim_threshold, 512 << 20)
    mallopt(top_pad, 64 << 20)


def read_rows(settings: PartySettings) -> StoreDatasets:
    """A party's training and held-out rows, in main memory; raises DataError, AlignmentError."""
    data = settings.data
    store = open_store(data.store)
    alignment = None if data.alignment is None else read_alignment(data.alignment, store)
    inputs = store.inputs() if data.inputs is None else data.inputs
    if settings.model.bottom is None:
        inputs = {}
    elif not inputs:
        raise DataError(f"{data.store}: expected features for the bottom model, got none")
    return open_datasets(store, inputs, label=settings.role == "guest", alignment=alignment)


def _to_device(table: Dataset, job: Job, device: torch.device) -> Dataset:
    """StoreDatasets on the accelerator, if there is room beside the models; else batches are sent there."""
    if device.type != "cuda" or job.order.shuffle == "blocks":
        return table
    free, _ = torch.cuda.mem_get_info(device)
    return table.to(device) if table.num_bytes < free // 3 else table


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device: expected one that is here, got {name!r}: {reason}") from error
    return device


def _endpoint(
    settings: PartySettings,
    notice: Callback = ignore,
) -> Endpoint:
    keys = None
    if settings.peers and not settings.insecure:
        assert settings.keys is not None  # settings are checked
        authorities = {name: peer.ca for name, peer in settings.peers.items() if peer.ca}
        keys = (settings.keys.certificate, settings.keys.key, authorities)
    link = settings.link

    def line() -> LinkEmulator | None:
        return None if link is None else LinkEmulator.of(link)

    connect = {
        name: Route(
            peer.connect, peer.streams, peer.connections, _gateway(peer.gateway, peer.connect)
        )
        for name, peer in settings.peers.items()
        if peer.connect is not None
    }
    return Endpoint(
        name=settings.name,
        listen=settings.listen,
        accept=tuple(name for name in settings.peers if name not in connect),
        connect=connect,
        keys=keys,
        carrier=settings.carrier,
        behind_gateway=settings.gateway,
        connect_s=settings.connect_s,
        deadline_s=settings.deadline_s,
        outage_s=settings.outage_s,
        heartbeat_s=settings.heartbeat_s,
        line=line,
        notice=notice,
    )


def _gateway(settings: GatewaySettings | None, address: str) -> Gateway | None:
    if settings is None:
        return None
    return Gateway(settings.name or address.rsplit(":", 1)[0].strip("[]"), settings.ca)
