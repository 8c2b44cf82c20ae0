"""`celu check`: everything about one party that can be checked before its peers are there.

It uses the code that a run starts with, so each error is the one that the run would report. It
sends nothing. Beside the store it writes the files that the run reads its rows from.
"""

from __future__ import annotations

import datetime as dt
import socket
from collections.abc import Iterator
from pathlib import Path

import torch

from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.doctor.facts import Finding
from celu.doctor.machine import read_certificates
from celu.doctor.party_rules import certificate_findings
from celu.engine.coding import Coding
from celu.engine.promises import promises
from celu.engine.schedule import Schedule
from celu.engine.setup import RunTerms, contract_of, inventory_of
from celu.errors import ModelError
from celu.events import ignore
from celu.launch.auditing import check_audit_key
from celu.launch.endpoint import endpoint_of
from celu.launch.loading import load_party, read_datasets
from celu.launch.memory_estimate import (
    MemoryEstimate,
    available_bytes,
    estimate_memory,
    resident_bytes,
)
from celu.launch.ranks import sharding_of, slices_of
from celu.launch.ready import make_ready
from celu.launch.recording import modules_of
from celu.launch.trial import Trial, try_party
from celu.metrics.names import LOSS
from celu.party import Guest, Host
from celu.privacy.ledger import Ledger
from celu.run_folder import check_run_folder
from celu.transport.carrier import Admission
from celu.transport.connect import Endpoint, find_carrier
from celu.transport.tls import Credentials, read_authority


def check_party(settings: PartySettings, job: Job, source: Path) -> Iterator[Finding]:
    """What was checked, as far as it is in order; raises the first error that a run would raise.

    Python searches `source` first when it imports the user's modules.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    process = resident_bytes()
    for codecs in (job.tuning().codecs, *(choice.codecs for choice in job.choices)):
        for host in job.hosts:
            Coding(job, host, codecs)
    check_run_folder(settings.run_dir)
    with slices_of(settings, job) as slices:
        yield from _check_keys(settings)
        yield from _check_network(settings)
        check_audit_key(settings)
        is_aligned = has_alignment(settings)
        aligned = settings if is_aligned else _of_whole_store(settings)
        datasets = read_datasets(aligned)
        sharding = sharding_of(aligned, job, slices, datasets)
        party = load_party(aligned, job, source, datasets, sharding)
        schedule, terms, ledger = make_ready(settings, job, party)
        if settings.start is not None:
            yield Finding("start", "ok", f"{settings.start}: the weights of model {terms.start}")
        yield _rows_finding(settings, party, schedule, is_aligned)
        for warning in datasets.warnings:
            yield Finding("rows", "warn", warning)
        yield from _check_tables(settings, party)
        trial = try_party(settings.name, party, job, schedule.test_rows, slices)
    yield _model_finding(settings, job, trial, validates=schedule.validates)
    if ledger is not None:
        yield _privacy_finding(settings, job, ledger)
    yield from _promise_findings(job, schedule)
    if is_aligned:
        yield _check_run_folder(settings, job, party, terms)
    estimate = estimate_memory(settings.name, party, job, trial, process)
    yield _memory_finding(estimate, party.train.is_on_accelerator, torch.device(settings.device))


def _check_keys(settings: PartySettings) -> Iterator[Finding]:
    if not settings.peers:
        return
    endpoint = endpoint_of(settings)  # reads and checks the keys
    certificates = []
    if endpoint.keys is not None:
        credentials = Credentials.read(*endpoint.keys)
        certificates = read_certificates(settings.name, endpoint.keys, dt.datetime.now(dt.UTC))
    yield from certificate_findings(settings.name, certificates, insecure=settings.insecure)
    if endpoint.keys is None:
        return
    for peer in settings.peers:
        if credentials.is_signed_by(peer):
            yield Finding(
                "certificate",
                "warn",
                f"peers.{peer}.ca is the authority that signed our own certificate",
                f"Unless both companies share one authority, ask {peer} for its own ca.pem.",
            )


def _check_network(settings: PartySettings) -> Iterator[Finding]:
    endpoint = endpoint_of(settings)
    credentials = Credentials.read(*endpoint.keys) if endpoint.keys else None
    if endpoint.accept:
        yield _check_listening(endpoint, credentials)
    for peer, route in endpoint.connect.items():
        if route.gateway is not None and route.gateway.ca is not None:
            read_authority(route.gateway.ca)
        host, port = route.address.rsplit(":", 1)
        try:
            socket.getaddrinfo(host.strip("[]"), int(port))
        except OSError as error:
            yield Finding(
                "network",
                "warn",
                f"peers.{peer}.connect: {host} has no address here: {error.strerror or error}",
                "Check the name, or this machine's DNS.",
            )
        else:
            yield Finding(
                "network", "ok", f"{peer} will be dialed at {route.address} ({endpoint.carrier})"
            )


def _check_listening(endpoint: Endpoint, credentials: Credentials | None) -> Finding:
    """Open the port and close it again; raises ConfigError if it cannot be opened."""
    assert endpoint.listen is not None  # the settings require it of a party that accepts
    links = {peer: endpoint.new_link(peer) for peer in endpoint.accept}
    admission = Admission(links, credentials, behind_gateway=endpoint.behind_gateway)
    find_carrier(endpoint.carrier).listen(endpoint.listen, admission).stop()
    peers = ", ".join(endpoint.accept)
    return Finding("network", "ok", f"{endpoint.listen} is free for {peers} ({endpoint.carrier})")


def has_alignment(settings: PartySettings) -> bool:
    """Whether the rows are aligned: not before `celu align` has written the folder."""
    alignment = settings.require_data().alignment
    return alignment is None or alignment.exists()


def _of_whole_store(settings: PartySettings) -> PartySettings:
    """The same settings with all rows of the store."""
    whole = settings.require_data().model_copy(update={"alignment": None, "aligned": True})
    return settings.model_copy(update={"data": whole})


def _rows_finding(
    settings: PartySettings, party: Guest | Host, schedule: Schedule, is_aligned: bool
) -> Finding:
    validation = f"{party.validation.num_rows:,} to validate on, " if party.validation else ""
    rows = (
        f"{party.train.num_rows:,} to train on, {validation}{party.test.num_rows:,} held out, "
        f"{schedule.rounds_per_epoch:,} batches an epoch"
    )
    if not is_aligned:
        return Finding(
            "rows",
            "warn",
            f"{rows}; all of the store, since {settings.require_data().alignment} does not exist",
            "Run celu align at all parties, then check again.",
        )
    return Finding("rows", "ok", rows)


def _check_tables(settings: PartySettings, party: Guest | Host) -> Iterator[Finding]:
    """Warn of tables that `shard` asks for and that only a run with several ranks refuses."""
    if not settings.require_model().shard:
        return
    from celu.ranks.embedding import check_shardable, sparse_tables  # torch.distributed is slow

    modules = {name: module for name, module in modules_of(party).items() if module is not None}
    problem = ""
    try:
        tables = sparse_tables(modules)
        for name in tables:
            check_shardable(modules, name)
        if not tables:
            problem = (
                "model.shard: expected embedding tables, that is torch.nn.Embedding(sparse=True), "
                "got a model without"
            )
    except ModelError as error:
        problem = str(error)
    if problem:
        text = f"{problem}. A run with several ranks refuses it"
        yield Finding("model", "warn", text, "Remove model.shard, or change the model.")


def _model_finding(settings: PartySettings, job: Job, trial: Trial, *, validates: bool) -> Finding:
    did = "forward, backward and an update on one batch"
    if trial.loss is None:
        width = job.hosts[settings.name].z_width
        return Finding("model", "ok", f"{did}: Z of width {width}, with made-up derivatives")
    loss = f"loss {trial.loss:.4g}"
    metrics = f"; metrics: {', '.join(trial.metrics)}" if trial.metrics else ""
    if trial.metrics and validates and job.evaluation.metric not in trial.metrics:
        metrics += f"; the {LOSS} of validation rows decides which weights are the best"
    made_up = " with made-up Z" if job.hosts else ""
    return Finding("model", "ok", f"{did}{made_up}: {loss}{metrics}")


def _privacy_finding(settings: PartySettings, job: Job, ledger: Ledger) -> Finding:
    budget = settings.privacy.budget
    limit = "no budget is set" if budget is None else f"the budget is {budget:g}"
    text = f"labels at epsilon {job.privacy.label_epsilon:g}; "
    if ledger.unprotected:
        text += "an earlier run without label_epsilon told hosts more than any epsilon"
        return Finding("privacy", "warn", text, "These labels cannot be protected any more.")
    text += f"with this run {ledger.total:g} is spent on them in all, and {limit}"
    return Finding("privacy", "ok", text)


def _promise_findings(job: Job, schedule: Schedule) -> Iterator[Finding]:
    """What noise promises; what a label_epsilon does is in the ledger's finding."""
    for promise in promises(job, schedule):
        if not promise.startswith("labels"):
            yield Finding("privacy", "ok", promise)


def _check_run_folder(
    settings: PartySettings, job: Job, party: Guest | Host, terms: RunTerms
) -> Finding:
    """Raises CheckpointError for checkpoints of a run with another contract."""
    contract = contract_of(job, party, terms)
    inventory = inventory_of(contract, Checkpoints(settings.run_dir), ignore)
    newest = max(inventory.rounds, default=0)
    what = f"would resume from round {newest:,}" if newest else "no checkpoint to resume from"
    return Finding("run folder", "ok", f"{settings.run_dir}: {what}")


def _memory_finding(
    estimate: MemoryEstimate, rows_on_device: bool, device: torch.device
) -> Finding:
    parts = {
        "weights": estimate.weights,
        "optimizer": estimate.optimizer,
        "one step": estimate.step,
        "workset table": estimate.table,
        "messages in flight": estimate.in_flight,
        "copies for checkpoints": estimate.copies,
    }
    listed = ", ".join(f"{name} {_megabytes(size)}" for name, size in parts.items())
    text = (
        f"about {_megabytes(estimate.total)}: this process {_megabytes(estimate.process)}, "
        f"{listed}; rows {_megabytes(estimate.rows)}, "
        f"{f'on {device}' if rows_on_device else 'mapped from files'}"
    )
    needed = estimate.total - estimate.process
    if device.type == "cuda":  # which holds the rows already, if they fit
        available: int | None = torch.cuda.mem_get_info(device)[0]
    else:
        available = available_bytes()
    if available is not None and needed > available:
        return Finding(
            "memory",
            "warn",
            f"{text}; {_megabytes(available)} are available",
            "Choose a smaller batch_size, W or model, or a machine with more memory.",
        )
    return Finding("memory", "ok", text)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
