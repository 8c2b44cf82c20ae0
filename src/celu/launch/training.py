"""`celu run` and `celu.run`: one party's training over the network, recorded in its run folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from celu import open_files
from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.config.party import PartySettings, check_names, read_party
from celu.config.schema import SCHEMA_FILE
from celu.data.tags import Tags
from celu.engine.auditing import AuditOptions
from celu.engine.extension import check_more, extended_rounds
from celu.engine.setup import RunTerms, contract_of, inventory_of
from celu.errors import ConfigError, PeerLost, PeerRestarted
from celu.events import Callback, Connected, DataOpened, Restarted, Warned, call_all
from celu.launch.auditing import audit_options, input_columns
from celu.launch.endpoint import endpoint_of
from celu.launch.folder import open_run_folder
from celu.launch.label_budget import spend_label_budget
from celu.launch.loading import load_party, read_datasets, test_ids
from celu.launch.memory import retain_freed_memory
from celu.launch.once import AppliedOptions
from celu.launch.precision import matrix_products
from celu.launch.ranks import (
    check_same_keys,
    check_same_weights,
    check_slices,
    rank_checkpoints,
    sharding_of,
    slices_of,
    with_own_device,
)
from celu.launch.ready import make_ready
from celu.launch.recording import modules_of, record_result, recording_failure
from celu.launch.restarts import Restarts
from celu.launch.same_party import check_same_settings, check_same_store
from celu.party import Guest, Host
from celu.ranks.environment import num_ranks
from celu.ranks.link import RankLink
from celu.ranks.slices import ONE, Slices
from celu.result import Result
from celu.run_folder import RunFolder
from celu.session import guest_session, host_session
from celu.transport.connect import open_links
from celu.transport.link import Link, run_blocking


def run(
    job: Job,
    party: Guest | Host,
    settings: PartySettings | Path | str = "party.toml",
    *,
    callbacks: Sequence[Callback] = (),
    restart_from: int | None = None,
    more: int = 0,
) -> Result:
    """Train one party of a job over the network, in place; the other parties run the same job.

    `settings` are the party's private settings or the file with them: its name, peers and keys,
    where it listens, its run folder. `[data]`, `[model]`, `device` and `tracking` are not used:
    `party` has the rows, and modules on their device. `callbacks` are called with each event; if
    one raises, the run ends with CallbackError. A second call resumes the run from the checkpoints
    in the run folder. With `restart_from`, which all parties must pass, it resumes from this round
    and trains later ones again. With `more`, which all parties must pass, it continues a finished
    or stopped run by that many rounds. A run that is done stays so if no peer comes. Raises
    CeluError.
    """
    if more != 0:
        check_more(more)
    source = settings if isinstance(settings, Path | str) else "party.toml"
    if isinstance(settings, Path | str):
        settings = read_party(Path(settings))
    check_names(job, settings, Path(source))
    check_slices(settings, job, settings.slices)
    if num_ranks() > 1:
        raise ConfigError(
            "torchrun: expected celu run, whose party.toml names rows and modules for every rank, "
            f"got celu.run in Python, at {num_ranks()} ranks; start one process"
        )
    if isinstance(party, Guest) != (settings.role == "guest"):
        raise ConfigError(
            f"{source}: role: expected the role of the {type(party).__name__} that was passed, "
            f"got {settings.role!r}"
        )
    # The record must not name modules and rows that the run does not use: an export reads it.
    recorded = settings.model_copy(update={"data": None, "model": None})
    folder = open_run_folder(recorded, job, keep_done=restart_from is None and not more)
    folder.add_callback(call_all(callbacks))
    initial = {name: copy.deepcopy(m.state_dict()) for name, m in modules_of(party).items() if m}

    def reset() -> Guest | Host:
        for name, module in modules_of(party).items():
            if module is not None:
                module.load_state_dict(initial[name])
        return party

    with recording_failure([folder]), matrix_products(settings):
        slices = Slices(settings.slices)
        _restart(folder, restart_from, slices)
        result = _run_recorded(
            settings, job, reset, folder, lambda port: None, more=more, ranks=slices
        )
        if result is None:
            raise PeerLost(
                f"{folder.path}: expected the peers, none came within {settings.connect_s:g} s "
                "(connect_s); the run in this folder is done, and stays so"
            )
        return result


def run_party(
    settings: PartySettings,
    job: Job,
    source: Path,
    folder: RunFolder,
    listening: Callable[[int], None],
    restart_from: int | None = None,
    more: int = 0,
    joined: Callable[[Slices], None] = lambda ranks: None,
) -> Result | None:
    """Train a party whose rows and modules `party.toml` names; raises CeluError.

    Returns None if the run in the folder is done already, and the peers did not come.

    Python searches `source` first when it imports the user's modules. `listening` is called with
    the port once peers can connect, `joined` once the party's ranks have met. For `restart_from`
    and `more` see `run`.
    """
    retain_freed_memory()
    settings = with_own_device(settings)
    with (
        slices_of(settings, job) as ranks,
        recording_failure([folder]),
        matrix_products(settings),
    ):
        joined(ranks)
        check_same_settings(ranks, settings, job, more)
        _restart(folder, restart_from, ranks)
        endpoint_of(settings)  # refuse wrong keys before reading rows, which may take long
        datasets = read_datasets(settings)
        check_same_store(ranks, settings, datasets)
        for warning in datasets.warnings:
            folder.emit(Warned(message=warning))
        folder.write(SCHEMA_FILE, datasets.schema.to_json())
        folder.emit(
            DataOpened(
                schema_digest=datasets.schema.digest(),
                train_rows=datasets.train.num_rows,
                validation_rows=0 if datasets.validation is None else datasets.validation.num_rows,
                test_rows=datasets.test.num_rows,
            )
        )
        sharding = sharding_of(settings, job, ranks, datasets)
        return _run_recorded(
            settings,
            job,
            lambda: load_party(settings, job, source, datasets, sharding),
            folder,
            listening,
            partial(test_ids, settings),
            input_columns(settings),
            more,
            ranks,
        )


def _restart(folder: RunFolder, round_: int | None, ranks: Slices) -> None:
    """Give up the checkpoints after a round, if one is given."""
    if round_ is None:
        return
    given = round_

    def give_up() -> int:
        Checkpoints(folder.path).restart_from(given)
        folder.emit(Warned(message=f"checkpoints after round {given} were given up on request"))
        return given

    AppliedOptions(folder, ranks.launch).once("restart_from", give_up)


def _run_recorded(
    settings: PartySettings,
    job: Job,
    make_party: Callable[[], Guest | Host],
    folder: RunFolder,
    listening: Callable[[int], None],
    read_ids: Callable[[Tags], Any] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    more: int = 0,
    ranks: Slices = ONE,
) -> Result | None:
    """Train until done; if a peer's process restarts, start over from the last checkpoint.

    Returns None if the run was done already, and the peers did not come.
    Raises PeerLost if peers restart again and again, and no checkpoint is taken in between.
    """
    open_files.raise_limit()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    audit = audit_options(settings, folder, columns)
    restarts, terms = Restarts("a new checkpoint"), RunTerms()
    while True:
        party = make_party()
        terms = make_ready(settings, job, party, terms).terms  # before peers wait for us
        if more and terms.total_rounds is None:  # once: the first session records it
            checkpoints = Checkpoints(folder.path)
            rows = party.train.num_rows
            extend = partial(extended_rounds, job, rows, checkpoints, more)
            applied = AppliedOptions(folder, ranks.launch)
            total = ranks.share(partial(applied.once, "total_rounds", extend))
            terms = replace(terms, total_rounds=total)
        check_same_weights(ranks, party)
        check_same_keys(ranks, job, party)
        try:
            result = _run_once(settings, job, party, folder, listening, terms, audit, ranks)
            break
        except PeerRestarted as error:
            folder.emit(Restarted(message=str(error)))
            restarts.add(error, _newest_checkpoint(folder))
    if result is None:
        folder.finish({})  # its summary stays
    else:
        record_result(folder, job, result, party, read_ids, ranks)
    return result


def _run_once(
    settings: PartySettings,
    job: Job,
    party: Guest | Host,
    folder: RunFolder,
    listening: Callable[[int], None],
    terms: RunTerms,
    audit: AuditOptions | None,
    ranks: Slices,
) -> Result | None:
    """One session with the peers, from connecting to GOODBYE.

    A party whose run is done takes part, since a peer may have lost its end. Returns None if the
    peers do not come then.
    """
    checkpoints = Checkpoints(folder.path)
    checkpoints.scan()  # while no peer waits
    if folder.is_done:  # also under this contract, with these rows?
        inventory_of(contract_of(job, party, terms), checkpoints, lambda event: None)
    is_alone = len(ranks.own) == ranks.size
    shared = rank_checkpoints(ranks, checkpoints, party)
    with ExitStack() as stack:
        links: Mapping[str, Link] | None = None
        try:
            opened = open_links(endpoint_of(settings, folder.try_emit), listening)
            links = stack.enter_context(opened)
        except PeerLost as error:
            if not folder.is_done or isinstance(error, PeerRestarted):
                raise
            folder.emit(Warned(message=f"the run is done, and no peer came to resume it: {error}"))
        if not ranks.share(lambda: links is not None) or links is None:
            return None
        folder.emit(Connected(peers=sorted(links), secure=not settings.insecure))
        spend_label_budget(settings, job, party)
        name, emit = settings.name, folder.emit
        options: dict[str, Any] = {
            "checkpoints": shared,
            "ranks": ranks,
            "terms": terms,
            "graphs": settings.graphs,
            "audit": audit,
        }
        ends: dict[str, Link] = dict(links)
        if not is_alone:
            ends = {peer: RankLink(ranks, peer, link) for peer, link in links.items()}
        if isinstance(party, Guest):
            session = guest_session(name, party, job, ends, emit, **options)
        else:
            link = ends[job.guest]
            session = host_session(name, party, job, link, emit, **options)
        return run_blocking(session)


def _newest_checkpoint(folder: RunFolder) -> str:
    return max((path.name for path in (folder.path / "checkpoints").glob("round-*")), default="")
