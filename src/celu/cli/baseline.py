"""`celu baseline`: what the guest reaches alone, and what federation adds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celu.cli.console import Console
from celu.cli.evaluate import lift_table
from celu.cli.monitors import Monitors
from celu.cli.progress import RunProgress, summary_table
from celu.config.job import read_job
from celu.config.party import check_names, read_party
from celu.launch.folder import open_run_folder
from celu.run_folder import BASELINE, SCORES


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("baseline")(baseline)


def baseline(
    party: Annotated[Path, typer.Argument(help="The guest's private settings.")],
    job: Annotated[Path, typer.Option(help="The contract.")] = Path("job.toml"),
    run: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the run with the hosts; by default that of party.toml. The "
            "baseline is written to its subfolder baseline."
        ),
    ] = None,
    top: Annotated[
        str | None,
        typer.Option(help="Another top model, if that of party.toml needs the Z of a host."),
    ] = None,
) -> None:
    """Train the guest alone under the same contract, and show what federation adds.

    The rows, rounds, optimizer, local steps and evaluations are those of the contract; there are no
    hosts and no network. If the run with the hosts is done, its held-out scores are compared with
    those of the guest alone; [bold]celu report[/bold] of the run then has the comparison too. Run
    the same command again to resume.
    """
    contract = read_job(job)
    settings = read_party(party)
    check_names(contract, settings, party)
    settings.require_data()
    from celu.launch.baseline import contract_alone, settings_alone, train_alone

    folder_of_run = settings.run_dir if run is None else run
    alone = settings_alone(settings, contract, top)
    alone = alone.model_copy(update={"run_dir": folder_of_run / BASELINE, "peers": {}})
    contract = contract_alone(contract)
    console = Console()
    monitors = Monitors(alone, contract, console)
    folder = open_run_folder(alone, contract)
    started = time.monotonic()
    with (
        monitors.attached_to(folder),
        RunProgress(console, f"{settings.name} alone") as progress,
    ):
        folder.add_callback(progress.event)
        result = train_alone(alone, contract, party.parent.resolve(), folder)
    took_s = time.monotonic() - started
    console.print(summary_table(f"{settings.name} alone", result, took_s, progress.training_s))
    if (folder_of_run / SCORES).exists():
        from celu.metrics.own import Metric
        from celu.models.building import find_metrics
        from celu.report.comparison import compare

        with console.status("comparing"):
            metrics = find_metrics(
                alone.require_model().metrics or (), "model.metrics", party.parent.resolve()
            )
            own = [metric for metric in metrics if isinstance(metric, Metric)]
            found = compare(folder_of_run, folder.path, own)
        weighted = ", by their weights" if found.weighted else ""
        title = f"what federation adds, on {found.rows.evaluated:,} held-out rows{weighted}"
        console.print(lift_table(found, title, ("together", "alone")))
    else:
        text = "to see what federation adds, train with the hosts (celu run), then:"
        console.print(escape(f"{text}\n  celu report {folder_of_run}"), soft_wrap=True)
