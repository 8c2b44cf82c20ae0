"""`celu tune`: search the settings of a contract, with all parties in this process."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from celu.cli.console import Console
from celu.cli.monitors import Monitors
from celu.config.job import Job, read_job
from celu.config.job_toml import job_toml
from celu.config.party import PartyFile, read_parties
from celu.config.space import read_space
from celu.errors import ConfigError, DataError, ModelError
from celu.run_folder import RunFolder

if TYPE_CHECKING:
    from celu.data.memory_map import StoreDatasets
    from celu.result import Result
    from celu.search import Progress, Search, Trial

BEST = "job.toml"
TRIALS = "trials.csv"
_NO_VALIDATION = (
    "there are no validation rows, so the test rows choose the best trial, and its score on them "
    "is too good: set [split] validation = 0.1 in schema.toml at all parties, and prepare the "
    "stores again"
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune")(tune)


def tune(
    parties: Annotated[list[Path], typer.Argument(help="The party.toml of every party.")],
    space: Annotated[Path, typer.Option(help="The settings to vary, and their values.")],
    job: Annotated[Path, typer.Option(help="The contract.")] = Path("job.toml"),
    out: Annotated[Path, typer.Option(help="The folder of the search.")] = Path("runs/tune"),
    trials: Annotated[
        int, typer.Option(min=1, help="How many trials to make, those of earlier calls included.")
    ] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Decides which values are tried.")] = 1,
    prune: Annotated[
        bool,
        typer.Option(help="Stop a trial that is worse than the median of others at that round."),
    ] = True,
) -> None:
    """Search the settings of a contract for the best metric, with all parties in one process.

    Each trial is a run of its own, as [bold]celu simulate[/bold] makes it, with values from
    space.toml. The score is the metric of the contract's [bold]\\[evaluation][/bold]. The best
    contract is written to job.toml in --out, for [bold]celu run[/bold]. Run the same command again
    to resume, or with more --trials to continue.
    """
    contract = read_job(job)
    files = read_parties(parties, contract, job)
    settings = read_space(space, contract)
    import torch

    from celu.launch.loading import load_parties, read_datasets
    from celu.launch.precision import DIFFERS, matrix_products, precision_differs
    from celu.launch.starting import load_starts
    from celu.search import Objective, Search

    threads = files[contract.guest].settings.threads
    if threads is not None:
        torch.set_num_threads(threads)
    rows = {name: read_datasets(file.settings) for name, file in files.items()}
    guest, hosts = load_parties(files, contract, rows)  # errors in the contract appear at once
    start = load_starts(files, {contract.guest: guest, **hosts})
    search = Search(
        out,
        settings,
        contract,
        objective=Objective.of(contract, guest),
        rows={
            name: [
                read.schema.digest(),
                read.train.num_rows,
                0 if read.validation is None else read.validation.num_rows,
                read.test.num_rows,
            ]
            for name, read in rows.items()
        },
        start=start,
        seed=seed,
        prunes=prune,
    )
    console = Console()
    train = _trainer(files, rows, out, console)
    with search.open() as made, matrix_products(files):
        if made:
            console.print(f"resumes after {len(made)} trials")
        if rows[contract.guest].validation is None:
            console.print(f"[yellow]warning[/yellow] {escape(_NO_VALIDATION)}", soft_wrap=True)
        if precision_differs(files):
            console.print(f"[yellow]warning[/yellow] {escape(DIFFERS)}", soft_wrap=True)
        for _ in range(len(made), trials):
            trial = search.run_trial(train)
            _write_trials(out / TRIALS, search)
            _write_best(out / BEST, search)
            console.print(escape(_line(trial, trials, search)), soft_wrap=True)
        _finish(search, out, console)


def _trainer(
    files: dict[str, PartyFile], rows: dict[str, StoreDatasets], out: Path, console: Console
) -> Callable[[Trial, Job, Progress], Result]:
    """A function that trains one trial, recorded in a run folder of its own."""
    from celu.engine.setup import check_party
    from celu.launch.loading import load_parties
    from celu.launch.recording import recording_failure, summary_of
    from celu.launch.starting import load_starts
    from celu.simulation import simulate

    def train(trial: Trial, job: Job, progress: Progress) -> Result:
        path = out / "trials" / f"{trial.number:04}"
        shutil.rmtree(path, ignore_errors=True)  # of an attempt that was interrupted
        party = files[job.guest].settings
        monitors = Monitors(party, job, console, folder=path)
        content = {"job": job.model_dump(mode="json"), "party": party.model_dump(mode="json")}
        folder = RunFolder(path, content)
        with recording_failure([folder]), monitors.attached_to(folder):
            folder.add_callback(progress)
            guest, hosts = load_parties(files, job, rows)
            try:
                load_starts(files, {job.guest: guest, **hosts})
                check_party(job.guest, guest, job)
                for name, host in hosts.items():
                    check_party(name, host, job)
            except (ModelError, DataError) as error:  # a width that the weights do not have, or
                raise ConfigError(str(error)) from error  # a batch of more rows than there are
            graphs = {name: file.settings.graphs for name, file in files.items()}
            result = simulate(job, guest, hosts, callbacks=[folder.emit], graphs=graphs)
            folder.finish(summary_of(result))
        return result

    return train


def _finish(search: Search, out: Path, console: Console) -> None:
    """Print all trials, and write the best contract."""
    made, best = search.trials(), search.best()
    names = list(made[0].values) if made else []
    table = Table(title=f"{len(made)} trials", show_header=True)
    for column in ("trial", search.objective.metric, "rounds", *names, "status"):
        table.add_column(column)
    for trial in made:
        style = "bold" if trial == best else None
        table.add_row(*(escape(cell) for cell in _cells(trial)), style=style)
    console.print(table)
    if best is None:
        reasons = "; ".join(sorted({trial.status for trial in made}))
        raise ConfigError(
            f"{out}: expected a trial with a score, got none: {reasons}; change the space"
        )
    path = out / BEST
    _write_best(path, search)
    text = (
        f"best: {_score(best, search)}; its contract is in {path}: give it to all parties, for "
        "celu run"
    )
    console.print(escape(text), soft_wrap=True)


def _write_best(path: Path, search: Search) -> None:
    """The contract of the best trial so far, if one has a score."""
    best = search.best()
    if best is not None:
        comment = f"The best of {len(search.trials())} trials of celu tune: {_score(best, search)}"
        path.write_text(job_toml(search.job_of(best), comment), encoding="utf-8")


def _score(best: Trial, search: Search) -> str:
    return f"trial {best.number}, {search.objective.metric} {best.score:.4f}"


def _cells(trial: Trial) -> list[str]:
    score = "" if trial.score is None else f"{trial.score:.4f}"
    values = [_shown(value) for value in trial.values.values()]
    return [str(trial.number), score, str(trial.rounds), *values, trial.status]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def _line(trial: Trial, num_trials: int, search: Search) -> str:
    values = " ".join(f"{name} {_shown(value)}" for name, value in trial.values.items())
    score = "" if trial.score is None else f" {search.objective.metric} {trial.score:.4f}"
    return f"trial {trial.number} of {num_trials}: {trial.status}{score} {values}"


def _write_trials(path: Path, search: Search) -> None:
    """All trials as a table for other programs, with exact numbers."""
    made = search.trials()
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["trial", search.objective.metric, "rounds", *made[0].values, "status"])
        for t in made:
            values = [v if isinstance(v, str) else json.dumps(v) for v in t.values.values()]
            rows.writerow([t.number, t.score, t.rounds, *values, t.status])
