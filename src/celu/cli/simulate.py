"""`celu simulate`: all parties of a job in this process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celu.cli.console import Console
from celu.cli.monitors import Monitors
from celu.cli.progress import RunProgress, summary_table
from celu.config.job import read_job
from celu.config.link import find_link
from celu.config.party import read_parties
from celu.config.schema import SCHEMA_FILE
from celu.event_log import LOG
from celu.events import Callback, Event, RoundDone, TrainingStarted, Warned
from celu.run_folder import RunFolder


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    parties: Annotated[list[Path], typer.Argument(help="The party.toml of every party.")],
    job: Annotated[Path, typer.Option(help="The contract.")] = Path("job.toml"),
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/simulation"),
    link: Annotated[
        str | None,
        typer.Option(help="Report the time it would take over a link: wan-300, wan-100, lte, lan."),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(min=1e-3, help="With --link: how many times as fast the parties compute."),
    ] = 1.0,
) -> None:
    """Run all parties of a job in one process: same algorithm, same bits, no network.

    Reads the files that [bold]celu run[/bold] reads; keys and addresses are not used. The guest's
    threads are those of all; precision is tf32 if it is at all parties. With --link the seconds are
    virtual: each party has a machine of its own, with that link between them.
    The run folder is the guest's; it holds those of the hosts, under hosts/.
    """
    started = time.monotonic()
    emulated = None if link is None else find_link(link)
    contract = read_job(job)
    files = read_parties(parties, contract, job)
    simulated = {
        "run": secrets.token_hex(16),  # the same in all folders of this run
        "link": None if emulated is None else emulated.model_dump(mode="json"),
        "speed": speed,
    }
    console = Console()
    paths = {name: out / "hosts" / name for name in contract.hosts} | {contract.guest: out}
    monitors = {
        name: Monitors(file.settings, contract, console, folder=paths[name])
        for name, file in files.items()
    }
    folders = {
        name: RunFolder(
            paths[name],
            {
                "job": contract.model_dump(mode="json"),
                "party": file.settings.model_dump(mode="json"),
                "simulated": simulated,
            },
        )
        for name, file in files.items()
    }
    folder = folders[contract.guest]
    import torch

    from celu.audit.result import AUDIT
    from celu.launch.auditing import audit_options, input_columns
    from celu.launch.loading import load_parties, read_datasets, test_ids
    from celu.launch.precision import DIFFERS, matrix_products, precision_differs
    from celu.launch.recording import record_model, record_result, recording_failure
    from celu.launch.starting import load_starts
    from celu.simulation import simulate_all

    with (
        _without_logs_of_no_run([*paths.values()]) as note,
        recording_failure(folders.values()),
        matrix_products(files),
        ExitStack() as stack,
    ):
        for name, monitor in monitors.items():
            stack.enter_context(monitor.attached_to(folders[name]))
        threads = files[contract.guest].settings.threads
        if threads is not None:
            torch.set_num_threads(threads)
        rows = {name: read_datasets(file.settings) for name, file in files.items()}
        guest, hosts = load_parties(files, contract, rows)
        load_starts(files, {contract.guest: guest, **hosts})
        with RunProgress(console, "all parties") as progress:
            folder.add_callback(progress.event)
            for name, read in rows.items():
                folders[name].write(SCHEMA_FILE, read.schema.to_json())
                for warning in read.warnings:
                    folder.emit(Warned(message=f"{name}: {warning}"))
            if precision_differs(files):
                folder.emit(Warned(message=DIFFERS))
            audits = {
                name: audit_options(file.settings, folders[name], input_columns(file.settings))
                for name, file in files.items()
            }
            results = simulate_all(
                contract,
                guest,
                hosts,
                link=emulated,
                speed=speed,
                callbacks=[folder.emit, note],
                host_callbacks={name: [folders[name].emit] for name in hosts},
                graphs={name: file.settings.graphs for name, file in files.items()},
                audits={name: audit for name, audit in audits.items() if audit is not None},
            )
        result = results[contract.guest]
        read_ids = partial(test_ids, files[contract.guest].settings)
        record_result(folder, contract, result, guest, read_ids)
        for name, host in hosts.items():
            record_model(folders[name], result, host)
            if (audit := results[name].audit) is not None:
                folders[name].write(AUDIT, audit.to_json())
            folders[name].finish(
                {"status": "done", "rounds": result.rounds, "model": result.model.name}
            )
    took_s = time.monotonic() - started
    console.print(
        summary_table(
            "simulation", result, took_s, progress.training_s, virtual=emulated is not None
        )
    )
    if link is not None and result.evaluations:
        seconds = result.evaluations[-1]["seconds"]
        console.print(f"over {link} the run would take {seconds:,.1f} s to its last evaluation")
    recorded = " ".join(str(folders[name].path) for name in (contract.guest, *hosts))
    text = f"recorded in {out}; to view it:\n  celu report {recorded}"
    console.print(escape(text), soft_wrap=True)


@contextmanager
def _without_logs_of_no_run(paths: Sequence[Path]) -> Iterator[Callback]:
    """Remove the logs of these run folders if this raises between the start and round 1.

    It yields a callback for the events of the run. A simulation cannot be resumed, so the log of
    one that has done nothing would only block the corrected command.
    """
    seen: set[type[Event]] = set()
    try:
        yield lambda event: seen.add(type(event))
    except BaseException:
        if TrainingStarted in seen and RoundDone not in seen:
            for path in paths:
                (path / LOG).unlink(missing_ok=True)
        raise
