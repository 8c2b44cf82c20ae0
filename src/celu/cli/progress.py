"""A run in the terminal: a progress bar, or one line for each evaluation where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from celu.cli.console import Console
from celu.events import (
    CheckpointDamaged,
    ClientRejected,
    Evaluated,
    Event,
    LinkDown,
    LinkUp,
    ModelTested,
    Restarted,
    RoundDone,
    TrainingResumed,
    TrainingStarted,
    TuningChosen,
    Warned,
)
from celu.metrics.names import LOSS

if TYPE_CHECKING:
    from celu.config.job import Tuning
    from celu.session import Result


def megabytes(num_bytes: float) -> str:
    """Bytes in megabytes, for people."""
    return f"{num_bytes / 1e6:,.1f} MB"


def link_message(event: Event) -> str | None:
    """The text for a link that goes down or comes up again, or a client that could not connect.

    None for another event.
    """
    if isinstance(event, ClientRejected):
        where = f" at {escape(event.address)}" if event.address else ""
        return f"[yellow]a client{where} could not connect[/yellow]: {escape(event.reason)}"
    if isinstance(event, LinkDown):
        return f"[yellow]the link to {escape(event.peer)} is down[/yellow]: {escape(event.reason)}"
    if isinstance(event, LinkUp):
        return f"the link to {escape(event.peer)} is up again after {event.seconds:.1f} s"
    if isinstance(event, Restarted):
        return f"{escape(event.message)}; starting over from the last checkpoint"
    return None


class RunProgress:
    """A callback that shows a run's events; use as a context manager."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._latest: dict[str, str] = {}
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None, facts="")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def event(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Warned):
            self._console.print(f"[yellow]warning[/yellow] {escape(event.message)}")
        elif isinstance(event, TrainingStarted):
            self._bar.update(self._task, total=event.num_rounds, completed=event.round)
            if isinstance(event, TrainingResumed):
                self._console.print(
                    f"{self._name}: resumes from round {event.round:,} of {event.num_rounds:,}"
                )
        elif isinstance(event, CheckpointDamaged):
            self._console.print(
                f"[yellow]warning[/yellow] the checkpoint of round {event.round} is damaged: "
                f"{escape(event.why)}"
            )
        elif (text := link_message(event)) is not None:
            self._console.print(f"{self._name}: {text}", soft_wrap=True)
        elif isinstance(event, RoundDone):
            if event.loss is not None:
                self._latest["loss"] = f"loss {event.loss:.4f}"
            carried = event.bytes_sent + event.bytes_received + event.evaluation_bytes
            self._latest["bytes"] = megabytes(carried)
            self._latest["local"] = f"{event.local_steps} local steps"
            self._bar.update(
                self._task, completed=event.round, facts=" · ".join(self._latest.values())
            )
        elif isinstance(event, TuningChosen) and not event.is_unchanged:
            self._console.print(f"{self._name}: round {event.round}: {escape(event.reason)}")
        elif isinstance(event, Evaluated):
            given = ordered(event.metrics)
            main = next(iter(given))
            self._latest["metric"] = f"{main} {given[main]:.4f}"
            if not self._console.is_terminal:
                shown = dict.fromkeys([main, LOSS])  # the summary has all
                values = " ".join(f"{m} {given[m]:.4f}" for m in shown if m in given)
                best = ", the best so far" if event.best else ""
                self._console.print(
                    f"{self._name}: round {event.round} {values} t {event.t:.1f} s{best}"
                )
        elif isinstance(event, ModelTested):
            given = ordered(event.metrics)
            main = next(iter(given))
            self._console.print(
                f"{self._name}: test rows, with the weights of round {event.round}: "
                f"{main} {given[main]:.4f}"
            )


def ordered(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics as evaluations report them, the contract's first, and the loss last."""
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: name == LOSS)}


def describe(tuning: Tuning) -> str:
    """A tuning in a few words."""
    (_, guest), (_, host) = tuning.for_role("guest"), tuning.for_role("host")
    codecs = tuning.codecs
    return f"R {guest} and {host}, {tuning.depth} in flight, {codecs.activation}"


def summary_table(name: str, result: Result, seconds: float) -> Table:
    """The result of a run as a table."""
    table = Table(title=f"{name}: done", show_header=False)
    table.add_row("rounds", f"{result.rounds:,}")
    table.add_row("local steps", f"{result.local_steps:,} ({result.bubbles} bubbles)")
    if result.choices:
        table.add_row("last choice of auto", describe(result.choices[-1]))
    if result.best_round is not None:
        table.add_row("weights of round", f"{result.best_round:,}, the best on validation rows")
    rows = "test" if result.test else "held-out"
    for metric, value in ordered(result.metrics).items():
        table.add_row(f"{rows} {metric}", f"{value:.4f}")
    table.add_row("sent in training", megabytes(result.traffic["bytes_sent"]))
    table.add_row("received in training", megabytes(result.traffic["bytes_received"]))
    table.add_row("for evaluation", megabytes(result.traffic["evaluation_bytes"]))
    table.add_row("time", f"{seconds:,.1f} s")
    return table
