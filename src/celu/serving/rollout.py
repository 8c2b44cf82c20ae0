"""Which model the guest serves: the newest one that all parties hold, also while requests arrive.

A thread looks for new models. When every host has loaded the newest common one, new requests use
it; requests in progress end with the one they started with, which hosts still have loaded.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from celu.errors import CeluError, ConfigError
from celu.serving.announcement import HostModels
from celu.serving.model_shelf import ModelShelf, ServedModel

SCAN_S = 1.0


class ServingHost(Protocol):
    """What the rollout has to know of a host."""

    name: str
    models: HostModels | None

    def has_z(self, model: str) -> bool:
        """Whether its Z of this model is available."""
        ...

    def want(self, names: Sequence[str]) -> None:
        """Ask it to load these models."""
        ...


class Rollout:
    """A context manager whose `current` model changes; `say` is called when it does.

    Hosts hold two models. So the next change begins `settle_s` after the last one, when no request
    in progress uses a third one.
    """

    def __init__(
        self,
        shelf: ModelShelf,
        hosts: Sequence[ServingHost],
        say: Callable[[str], None] = lambda text: None,
        *,
        settle_s: float = 1.0,
    ) -> None:
        self.current: ServedModel | None = None
        self._shelf = shelf
        self._hosts = hosts
        self._say = say
        self._broken: set[str] = set()  # models that cannot be loaded here
        self._said = ""
        self._settle_s = settle_s
        self._switched_at = -math.inf
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rollout", daemon=True)

    def __enter__(self) -> Rollout:
        self.step()
        if self.current is None:
            raise ConfigError(
                f"{self._shelf.folder}: expected a model to serve, got none that can be used; "
                'write one with "celu export RUN --out FOLDER"'
            )
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join(10.0)

    def look(self) -> None:
        """Look for a change soon: a host announced its models, or a link changed."""
        self._wake.set()

    @property
    def is_complete(self) -> bool:
        """Whether every host gives its Z for the current model."""
        current = self.current
        return current is not None and all(host.has_z(current.name) for host in self._hosts)

    def step(self) -> None:
        """Choose the model to serve, load it, and switch to it once all hosts have it loaded."""
        target, current = self._choose(), self.current
        is_new = current is None or target != current.name
        if target is None or (is_new and time.monotonic() - self._switched_at < self._settle_s):
            return
        try:
            served = self._shelf.load(target)
        except CeluError as error:
            self._broken.add(target)
            self._say(f"model {target} cannot be loaded: {error}")
            return
        names = [target] if current is None or current.name == target else [target, current.name]
        for host in self._hosts:
            host.want(names)
        if not is_new:
            return
        # A host that gives Z for the current model must not be lost by the change.
        if current is None or all(
            host.has_z(target) or not host.has_z(current.name) for host in self._hosts
        ):
            if current is not None:  # requests in progress use it; before the first there are none
                self._switched_at = time.monotonic()
            self.current = served
            self._shelf.unload_except(names)
            self._say(f"serves model {target}")

    def _choose(self) -> str | None:
        """The newest model that every host holds, as far as known; else our newest one."""
        names = [name for name in self._shelf.scan() if name not in self._broken]
        common = [name for name in names if all(self._holds(host, name) for host in self._hosts)]
        if common or not names:
            self._said = self._said if not common else ""
            return common[0] if common else None
        lacking = [h.name for h in self._hosts if not self._holds(h, names[0])]
        text = f"no model that all parties hold; {', '.join(lacking)} lacks {names[0]}"
        if text != self._said:
            self._said = text
            self._say(text)
        return names[0]

    @staticmethod
    def _holds(host: ServingHost, name: str) -> bool:
        """Whether a host holds a model; one that was never connected is given the benefit."""
        return host.models is None or name in host.models.held

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(SCAN_S)
            self._wake.clear()
            try:
                self.step()
            except CeluError as error:  # such as a folder that is not there now
                self._say(str(error))
