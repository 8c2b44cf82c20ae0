"""Outages of a link, on a seeded schedule: cuts, stalls, refused connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from faults.proxy import Proxy

KINDS = ("reset", "end", "stall", "blip")
_SHORTEST_S = 2.0


@dataclass(frozen=True)
class Outage:
    """An outage that was made.

    `reset` and `end` close all connections and refuse new ones until it ends. `stall` forwards
    nothing, and leaves connections open. `blip` closes them once.
    """

    minute: float
    kind: str
    seconds: float


@contextmanager
def outages(
    proxy: Proxy, number: int, within_s: float, max_s: float, seed: int
) -> Iterator[list[Outage]]:
    """Make outages at regular times, the kinds in turn; returns those made so far."""
    made: list[Outage] = []
    rng, over, began = Random(seed), threading.Event(), time.monotonic()
    every_s = within_s / (number + 1)

    def inject() -> None:
        for i in range(number):
            due = began + (i + 1) * every_s
            if over.wait(max(0.0, due - time.monotonic())):
                return
            kind = KINDS[i % len(KINDS)]
            seconds = 0.0 if kind == "blip" else rng.uniform(_SHORTEST_S, max_s)
            if kind == "stall":
                proxy.silence()
            else:
                proxy.cut(reset=kind != "end")
            started = time.monotonic()
            over.wait(seconds)
            proxy.restore()
            took = time.monotonic() - started
            made.append(Outage(round((started - began) / 60, 3), kind, round(took, 2)))

    thread = threading.Thread(target=inject)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()
