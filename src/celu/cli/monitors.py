"""What stands beside a run: trackers and the dashboard. Nothing that goes wrong there ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.markup import escape

from celu.config.party import PartySettings
from celu.run_folder import RunFolder


class Monitors:
    """Trackers by the party's settings, and the dashboard where there is a port for it.

    Raises ConfigError where a package is missing: before the run, so that its user knows.
    """

    def __init__(self, settings: PartySettings, port: int | None, console: Console) -> None:
        self._console = console
        self._port = port
        self._trackers = []
        if "tensorboard" in settings.tracking:
            from celu.tracking import TensorBoard

            self._trackers.append(TensorBoard(settings.run_dir, self._warn))
        if port is not None:
            import celu.dashboard.server  # noqa: F401 - to see that its packages are there

    @contextmanager
    def of(self, folder: RunFolder) -> Iterator[None]:
        """It stands beside that run in here."""
        with ExitStack() as stack:
            for tracker in self._trackers:
                folder.add_callback(tracker.event)
                stack.callback(tracker.close)
            if self._port is not None:
                self._serve(folder, self._port, stack)
            yield

    def _serve(self, folder: RunFolder, port: int, stack: ExitStack) -> None:
        from celu.dashboard.server import Dashboard

        try:
            served = stack.enter_context(Dashboard([folder.path], port=port))
        except Exception as error:  # a port that is taken, or whatever else: the run goes on
            self._warn(f"there is no dashboard: {error}")
        else:
            self._console.print(f"dashboard at {served.url}", soft_wrap=True)

    def _warn(self, words: str) -> None:
        self._console.print(f"[yellow]warning[/yellow] {escape(words)}", soft_wrap=True)
