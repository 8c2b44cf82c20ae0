"""What a person sees of a run: a bar on a terminal, a line an evaluation elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
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

if TYPE_CHECKING:
    from celu.config.job import Tuning
    from celu.session import Result

_METRICS = ("auc", "accuracy", "rmse", "loss")


def megabytes(num_bytes: float) -> str:
    """Bytes as a person reads them."""
    return f"{num_bytes / 1e6:,.1f} MB"


def of_a_link(event: str, fields: Mapping[str, Any]) -> str | None:
    """What to say of a link that went down or came up again; None for another event."""
    if event == "link_down":
        return f"[yellow]the link to {fields['peer']} is down[/yellow]: {escape(fields['reason'])}"
    if event == "link_up":
        return f"the link to {fields['peer']} is up again after {fields['seconds']:.1f} s"
    if event == "restart":
        return f"{escape(fields['message'])}; begins again"
    return None


class RunProgress:
    """Listens to a run's events; use as a context manager."""

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

    def event(self, event: str, fields: Mapping[str, Any]) -> None:
        """Show an event."""
        if event == "warning":
            self._console.print(f"[yellow]warning[/yellow] {escape(fields['message'])}")
        elif event == "started":
            self._bar.update(self._task, total=fields["num_rounds"])
        elif event == "resumed":
            self._bar.update(self._task, total=fields["num_rounds"], completed=fields["round"])
            self._console.print(
                f"{self._name}: goes on from round {fields['round']:,} of {fields['num_rounds']:,}"
            )
        elif event == "damaged":
            self._console.print(
                f"[yellow]warning[/yellow] the checkpoint of round {fields['round']} is damaged: "
                f"{escape(fields['why'])}"
            )
        elif (words := of_a_link(event, fields)) is not None:
            self._console.print(f"{self._name}: {words}")
        elif event == "round":
            if "loss" in fields:
                self._latest["loss"] = f"loss {fields['loss']:.4f}"
            carried = fields["bytes_sent"] + fields["bytes_received"] + fields["evaluation_bytes"]
            self._latest["bytes"] = megabytes(carried)
            self._latest["local"] = f"{fields['local_steps']} local steps"
            self._bar.update(
                self._task, completed=fields["round"], facts=" · ".join(self._latest.values())
            )
        elif event == "choice" and fields["reason"] != "as before":
            self._console.print(
                f"{self._name}: round {fields['round']}: {escape(fields['reason'])}"
            )
        elif event == "evaluation":
            metric = next(m for m in _METRICS if m in fields)
            self._latest["metric"] = f"{metric} {fields[metric]:.4f}"
            if not self._console.is_terminal:
                values = " ".join(f"{m} {fields[m]:.4f}" for m in _METRICS if m in fields)
                self._console.print(
                    f"{self._name}: round {fields['round']} {values} t {fields['t']:.1f} s"
                )


def describe(tuning: Tuning) -> str:
    """A tuning in a few words."""
    (_, guest), (_, host) = tuning.for_role("guest"), tuning.for_role("host")
    codecs = tuning.codecs
    return f"R {guest} and {host}, {tuning.depth} in flight, {codecs.activation}"


def summary_table(name: str, result: Result, seconds: float) -> Table:
    """The end of a run, in a table."""
    table = Table(title=f"{name}: done", show_header=False)
    table.add_row("rounds", f"{result.rounds:,}")
    table.add_row("local steps", f"{result.local_steps:,} ({result.bubbles} bubbles)")
    if result.choices:
        table.add_row("chose last", describe(result.choices[-1]))
    if result.evaluations:
        last = result.evaluations[-1]
        for metric in _METRICS:
            if metric in last:
                table.add_row(f"held-out {metric}", f"{last[metric]:.4f}")
    table.add_row("sent in training", megabytes(result.traffic["bytes_sent"]))
    table.add_row("received in training", megabytes(result.traffic["bytes_received"]))
    table.add_row("for evaluation", megabytes(result.traffic["evaluation_bytes"]))
    table.add_row("time", f"{seconds:,.1f} s")
    return table
