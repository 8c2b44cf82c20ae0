"""What is counted while parties align or predict: a bar or, without a terminal, lines."""

from __future__ import annotations

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from celu.cli.console import Console
from celu.cli.progress import DoneOfTotal, TimeLeft


class CountProgress:
    """Shows how many of a `unit` are done; use as a context manager.

    `waits_for` says whom the party waits for before it starts to count.
    """

    def __init__(self, console: Console, name: str, unit: str, waits_for: str = "") -> None:
        self._console = console
        self._name = name
        self._unit = unit
        self._waiting = f"waiting for {waits_for}" if waits_for else ""
        self._printed_tenths = 0
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            DoneOfTotal(),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeLeft(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None, facts=self._waiting)

    def __enter__(self) -> CountProgress:
        self._bar.start()
        if self._waiting and not self._console.is_terminal:
            self.print(escape(self._waiting))
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def print(self, text: str) -> None:
        """Print a line of its own, above a bar."""
        self._console.print(f"{self._name}: {text}", soft_wrap=True)

    def show(self, done: int, total: int, rate: str = "") -> None:
        """Show how many are done, of how many, and how fast."""
        facts = f"{self._unit} {rate}".strip()
        self._bar.update(self._task, completed=done, total=total, facts=facts)
        tenths = 10 * done // max(1, total)
        if not self._console.is_terminal and tenths > self._printed_tenths:
            self._printed_tenths = tenths
            self.print(f"{done:,} of {total:,} {self._unit}{rate and f', {rate}'}")
