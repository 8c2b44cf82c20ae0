"""Discrete-event simulation: virtual time, processes, and one random generator for everything.

Nothing sleeps and nothing runs in parallel: events wait in a heap, ordered by time and then by the
order in which they were scheduled. So a seed determines everything that happens.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

Action = Callable[[], None]


class Killed(BaseException):
    """The running process was killed. Like SIGKILL, nothing in celu catches it."""

    def __init__(self, *, power_cut: bool = False) -> None:
        super().__init__()
        self.power_cut = power_cut


class Simulator:
    """The clock, the scheduled events, and the trace of what happened."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)  # noqa: S311 - must be reproducible
        self.trace: list[str] | None = [] if traced else None
        self._events: list[tuple[float, int, Action]] = []
        self._num_scheduled = 0

    def after(self, seconds: float, action: Action) -> None:
        """Schedule an action."""
        self._num_scheduled += 1
        heapq.heappush(self._events, (self.now + seconds, self._num_scheduled, action))

    def log(self, who: str, what: str) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f} {who:6} {what}")

    def run(self, is_done: Callable[[], bool], until: float) -> bool:
        """Process events until done, or until a time; returns whether it is done."""
        while not is_done():
            if not self._events or self._events[0][0] > until:
                self.now = until
                return False
            self.now, _, action = heapq.heappop(self._events)
            action()
        return True


class Process:
    """A process that can be paused and killed; actions run only while it is alive.

    `on_kill` is called once, when it is killed, with whether the power was cut.
    """

    def __init__(self, simulator: Simulator, name: str, on_kill: Callable[[bool], None]) -> None:
        self.simulator = simulator
        self.name = name
        self.is_alive = True
        self._on_kill = on_kill
        self._paused = False
        self._waiting: deque[Action] = deque()

    def run(self, action: Action) -> None:
        """Run an action now, or once the process is no longer paused; never if it is dead."""
        if not self.is_alive:
            return
        if self._paused:
            self._waiting.append(action)
            return
        try:
            action()
        except Killed as end:
            self.kill(power_cut=end.power_cut)

    def after(self, seconds: float, action: Action) -> None:
        """Schedule an action of this process."""
        self.simulator.after(seconds, lambda: self.run(action))

    def pause(self, seconds: float) -> None:
        """Stop it (SIGSTOP) for a time; actions wait meanwhile."""
        if self.is_alive and not self._paused:
            self.simulator.log(self.name, f"paused for {seconds:.1f} s")
            self._paused = True
            self.simulator.after(seconds, self._resume)

    def kill(self, *, power_cut: bool = False) -> None:
        """Kill it (SIGKILL), or cut the power of its machine."""
        if self.is_alive:
            self.simulator.log(self.name, "power cut" if power_cut else "killed")
            self.is_alive = False
            self._on_kill(power_cut)

    def exit(self) -> None:
        """End it normally."""
        self.is_alive = False

    def _resume(self) -> None:
        if self.is_alive:
            self.simulator.log(self.name, "resumed")
        self._paused = False
        waiting, self._waiting = self._waiting, deque()
        for action in waiting:
            self.run(action)
