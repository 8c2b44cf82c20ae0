"""Virtual time, the processes that live in it, and one source of chance for everything.

Nothing sleeps and nothing runs beside anything else: what is to happen waits in a heap, by time and
then by the order in which it was asked for. So a seed decides all that happens.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

Action = Callable[[], None]


class Killed(BaseException):
    """The process that runs is no more. Nothing of celu catches it, as nothing catches SIGKILL."""

    def __init__(self, *, power_cut: bool = False) -> None:
        super().__init__()
        self.power_cut = power_cut


class World:
    """The time, what is to happen, and what has happened."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)  # noqa: S311 - it must repeat itself
        self.trace: list[str] | None = [] if traced else None
        self._events: list[tuple[float, int, Action]] = []
        self._asked = 0

    def after(self, seconds: float, action: Action) -> None:
        """Have something happen."""
        self._asked += 1
        heapq.heappush(self._events, (self.now + seconds, self._asked, action))

    def note(self, who: str, what: str) -> None:
        """Put something into the trace, if one is kept."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f} {who:6} {what}")

    def run(self, is_over: Callable[[], bool], until: float) -> bool:
        """Let things happen until it is over: True; or until a time comes before: False."""
        while not is_over():
            if not self._events or self._events[0][0] > until:
                self.now = until
                return False
            self.now, _, action = heapq.heappop(self._events)
            action()
        return True


class Process:
    """Something that can be paused and killed, and on which actions depend.

    `on_kill` is called once, when it is killed, with whether the power was cut.
    """

    def __init__(self, world: World, name: str, on_kill: Callable[[bool], None]) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self._on_kill = on_kill
        self._paused = False
        self._waiting: deque[Action] = deque()

    def do(self, action: Action) -> None:
        """Have the process do something: now, when it goes on, or never where it is gone."""
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
        """Have the process do something later."""
        self.world.after(seconds, lambda: self.do(action))

    def pause(self, seconds: float) -> None:
        """Stop it (SIGSTOP) for so long; what comes in meanwhile waits."""
        if self.is_alive and not self._paused:
            self.world.note(self.name, f"is paused for {seconds:.1f} s")
            self._paused = True
            self.world.after(seconds, self._go_on)

    def kill(self, *, power_cut: bool = False) -> None:
        """End it at once (SIGKILL, or with its machine)."""
        if self.is_alive:
            self.world.note(self.name, "loses its power" if power_cut else "is killed")
            self.is_alive = False
            self._on_kill(power_cut)

    def exit(self) -> None:
        """It ends by itself."""
        self.is_alive = False

    def _go_on(self) -> None:
        if self.is_alive:
            self.world.note(self.name, "goes on")
        self._paused = False
        waiting, self._waiting = self._waiting, deque()
        for action in waiting:
            self.do(action)
