"""A run's trackers and dashboard. A failure in one of them never ends the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.markup import escape

from celu.cli.console import Console
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.run_folder import RunFolder


class Monitors:
    """The trackers in the party's settings, and a dashboard if a port is given.

    Raises ConfigError if a package is missing: before the run, not in the middle of it.
    """

    def __init__(
        self,
        settings: PartySettings,
        job: Job,
        console: Console,
        *,
        port: int | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder` is the run folder, if it is not the one in the settings."""
        self._console = console
        self._port = port
        self._trackers = []
        for kind in dict.fromkeys(settings.tracking):
            from celu.tracking.tracker import Tracker

            where = folder or settings.run_dir
            self._trackers.append(
                Tracker(kind, where, name=settings.name, job=job, warn=self._warn)
            )
        if port is not None:
            import celu.dashboard.server  # noqa: F401 - raises if its packages are missing

    @contextmanager
    def attached_to(self, folder: RunFolder) -> Iterator[None]:
        """Track and serve a run within this context."""
        with ExitStack() as stack:
            for tracker in self._trackers:
                folder.add_callback(stack.enter_context(tracker))
            if self._port is not None:
                self._serve(folder, self._port, stack)
            yield

    def _serve(self, folder: RunFolder, port: int, stack: ExitStack) -> None:
        from celu.dashboard.server import Dashboard

        try:
            server = stack.enter_context(Dashboard([folder.path], port=port))
        except Exception as error:  # such as a port in use: the run continues without a dashboard
            self._warn(f"no dashboard: {error}")
        else:
            self._console.print(f"dashboard at {server.url}", soft_wrap=True)

    def _warn(self, message: str) -> None:
        self._console.print(f"[yellow]warning[/yellow] {escape(message)}", soft_wrap=True)
