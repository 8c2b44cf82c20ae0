"""Runs a generator in a thread, one item ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from contextlib import closing
from typing import Any, TypeVar

from celu.threads import CLOSE_S

_T = TypeVar("_T")


def prefetch(items: Generator[_T, None, None]) -> Generator[_T, None, None]:
    """Yield the same items, computed in a thread while the caller works; errors are raised here."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(1)
    stopped = threading.Event()

    def put(item: tuple[str, Any]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def work() -> None:
        try:
            with closing(items):
                for item in items:
                    if not put(("item", item)):
                        return
            put(("end", None))
        except BaseException as error:
            put(("error", error))

    thread = threading.Thread(target=work, name="reader", daemon=True)
    thread.start()
    try:
        while True:
            what, value = ready.get()
            if what == "end":
                return
            if what == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join(CLOSE_S)
