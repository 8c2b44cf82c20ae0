"""A run in the terminal: a progress bar or, where there is none, a line for each step of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from celu.cli.console import Console
from celu.events import (
    CheckpointDamaged,
    ClientRejected,
    DataOpened,
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
from celu.metrics.names import HIGHER_IS_BETTER, LOSS

if TYPE_CHECKING:
    from celu.config.job import Tuning
    from celu.result import Result


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


class DoneOfTotal(MofNCompleteColumn):
    """What is done, of how much; nothing before it starts."""

    def render(self, task: Task) -> Text:
        """See rich."""
        return Text() if task.total is None else super().render(task)


class TimeLeft(TimeRemainingColumn):
    """The time left; nothing before it starts: nobody knows when the peers come."""

    def render(self, task: Task) -> Text:
        """See rich."""
        return Text() if task.total is None else Text("left ") + super().render(task)


class RunProgress:
    """A callback that shows a run's events; use as a context manager.

    `waits_for` says whom the party waits for before training starts. A host has no evaluations
    (`evaluates`), so without a terminal it prints every tenth of its rounds instead.
    """

    def __init__(
        self, console: Console, name: str, waits_for: str = "", *, evaluates: bool = True
    ) -> None:
        self._console = console
        self._name = name
        self._waits_for = waits_for
        self._prints_rounds = not evaluates and not console.is_terminal
        self._num_rounds, self._printed_tenths = 1, 0
        self._has_said_what_decides = False
        self.training_s: float | None = None  # from the first round to the last, as in the report
        self._latest: dict[str, str] = {}
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            DoneOfTotal(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TimeLeft(),
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
        match event:
            case TrainingStarted():  # or resumed
                self._show_start(event)
            case RoundDone():
                self._show_round(event)
            case Evaluated():
                self._show_scores(event)
            case DataOpened() if self._waits_for:
                self._bar.update(self._task, facts=f"waiting for {self._waits_for}")
                rows = f"{event.train_rows:,} rows to train on"
                self._print_line(f"{rows}; waiting for {escape(self._waits_for)}")
            case _:
                self._show_notice(event)

    def _print_line(self, text: str) -> None:
        """Print a line where there is no bar."""
        if not self._console.is_terminal:
            self._console.print(f"{self._name}: {text}", soft_wrap=True)

    def _show_start(self, event: TrainingStarted) -> None:
        self._num_rounds = max(1, event.num_rounds)
        self._printed_tenths = 10 * event.round // self._num_rounds
        # From here on the bar's clock is that of training.
        self._bar.reset(self._task, total=event.num_rounds, completed=event.round, facts="")
        if isinstance(event, TrainingResumed):
            self._console.print(
                f"{self._name}: resumes from round {event.round:,} of {event.num_rounds:,}"
            )
        elif self._waits_for:
            self._print_line(f"connected; training for {event.num_rounds:,} rounds")

    def _show_round(self, event: RoundDone) -> None:
        self.training_s = event.seconds
        if event.loss is not None:
            self._latest["loss"] = f"loss {event.loss:.4f}"
        carried = event.bytes_sent + event.bytes_received + event.evaluation_bytes
        self._latest["bytes"] = megabytes(carried)
        self._latest["local"] = f"{event.local_steps} local steps"
        self._bar.update(self._task, completed=event.round, facts=" · ".join(self._latest.values()))
        tenths = 10 * event.round // self._num_rounds
        if self._prints_rounds and tenths > self._printed_tenths:
            self._printed_tenths = tenths
            done = f"round {event.round:,} of {self._num_rounds:,}"
            self._print_line(f"{done}, {megabytes(carried)}, t {event.t:.1f} s")

    def _show_scores(self, event: Evaluated) -> None:
        self.training_s = event.seconds
        given = ordered(event.metrics)
        main = event.decides if event.decides in given else next(iter(given))
        if event.decides is not None and not self._has_said_what_decides:
            self._has_said_what_decides = True
            text = f"the {event.decides} of validation rows decides which weights are the best"
            self._console.print(f"{self._name}: {escape(text)}", soft_wrap=True)
        self._latest["metric"] = f"{main} {given[main]:.4f}"
        shown = dict.fromkeys([main, LOSS])  # the summary has all
        values = " ".join(f"{m} {given[m]:.4f}" for m in shown if m in given)
        best = ", the best so far" if event.best else ""
        self._print_line(f"round {event.round} {values} t {event.t:.1f} s{best}")

    def _show_notice(self, event: Event) -> None:
        """Print an event that deserves a line of its own, also above a bar."""
        text, start = link_message(event), f"{self._name}:"
        if isinstance(event, Warned):
            text, start = escape(event.message), "[yellow]warning[/yellow]"
        elif isinstance(event, CheckpointDamaged):
            text = f"the checkpoint of round {event.round} is damaged: {escape(event.why)}"
            start = "[yellow]warning[/yellow]"
        elif isinstance(event, TuningChosen) and not event.is_unchanged:
            text = f"round {event.round}: {escape(event.reason)}"
        elif isinstance(event, ModelTested):
            given = ordered(event.metrics)
            main = next(iter(given))
            text = f"test rows, with the weights of round {event.round}: {main} {given[main]:.4f}"
        if text is not None:
            self._console.print(f"{start} {text}", soft_wrap=True)


def ordered(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics as evaluations report them, the contract's first, and the loss last."""
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: name == LOSS)}


def describe(tuning: Tuning) -> str:
    """A tuning in a few words."""
    (_, guest), (_, host) = tuning.for_role("guest"), tuning.for_role("host")
    codecs = tuning.codecs
    return f"R {guest} and {host}, {tuning.depth} in flight, {codecs.activation}"


def summary_table(
    name: str, result: Result, seconds: float, training_s: float | None, *, virtual: bool = False
) -> Table:
    """The result of a run as a table.

    The time of a run is that of training, `training_s`: from its first round to its last, as in the
    report. `seconds` is the time of the command.
    """
    table = Table(title=f"{name}: done", show_header=False)
    table.add_row("rounds", f"{result.rounds:,}")
    table.add_row("local steps", f"{result.local_steps:,} ({result.bubbles} bubbles)")
    if result.choices:
        table.add_row("last choice of auto", describe(result.choices[-1]))
    if result.best_round is not None:
        table.add_row("weights of round", f"{result.best_round:,}, the best on validation rows")
    if result.evaluations:
        table.add_row("evaluations", _evaluations(result))
    rows = "test" if result.test else "held-out"
    for metric, value in ordered(result.metrics).items():
        table.add_row(f"{rows} {metric}", f"{value:.4f}")
    table.add_row("sent in training", megabytes(result.traffic["bytes_sent"]))
    table.add_row("received in training", megabytes(result.traffic["bytes_received"]))
    table.add_row("for evaluation", megabytes(result.traffic["evaluation_bytes"]))
    if training_s is not None:
        shown = f"{training_s:,.1f} s{' (virtual time)' if virtual else ''}"
        table.add_row("training time", f"{shown}, as in the report")
    table.add_row("time in total", f"{seconds:,.1f} s, all of this command")
    return table


def _evaluations(result: Result) -> str:
    """How many evaluations there were, and the best of them by the contract's metric."""
    count = f"{len(result.evaluations):,}"
    metric = next(iter(ordered(result.metrics)), "")
    if metric not in HIGHER_IS_BETTER:
        return count
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    scored = [e for e in result.evaluations if metric in e and not math.isnan(e[metric])]
    best = max(scored, key=lambda e: sign * e[metric], default=None)
    if best is None:
        return count
    return f"{count}, the best {metric} {best[metric]:.4f} after round {int(best['round']):,}"
