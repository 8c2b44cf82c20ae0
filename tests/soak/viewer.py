"""A browser at a party's dashboard, without a browser: opens the page and reads its updates."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 60.0


@dataclass
class Viewer:
    """What one viewer has seen."""

    pages: int = 0
    updates: int = 0
    failures: int = 0


@contextmanager
def viewing(log: Path, open_s: float, closed_s: float) -> Iterator[Viewer]:
    """View the dashboard that a party's log names, for `open_s`, and again after `closed_s`."""
    seen, over = Viewer(), threading.Event()

    def view() -> None:
        while not over.wait(closed_s if seen.pages else 0.1):
            found = re.search(r"dashboard at (\S+)/", log.read_text()) if log.exists() else None
            if found is None:
                continue
            try:
                _open(found[1], time.monotonic() + open_s, seen, over)
            except OSError:
                seen.failures += 1

    thread = threading.Thread(target=view)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(_TIMEOUT_S)


def _open(url: str, until: float, seen: Viewer, over: threading.Event) -> None:
    with ExitStack() as stack:
        for path in ("/", "/events"):
            response = stack.enter_context(
                urllib.request.urlopen(f"{url}{path}", timeout=_TIMEOUT_S)
            )
            if path == "/":
                response.read()
        seen.pages += 1
        while time.monotonic() < until and not over.is_set():
            line = response.readline()
            if not line:
                return
            seen.updates += line.startswith(b"event: update")
