"""Scores of all aligned rows, computed in advance from Z that hosts pushed.

A request for the id of an aligned row is then a lookup. This is only a shortcut: until the scores
of a model are complete, and for requests with features, `inference` computes them from Z.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from celu.serving.few_rows import MAX_FEW, Array
from celu.serving.model_shelf import ServedModel
from celu.serving.row_index import ServedRows

_POLL_S = 1.0
_STOP_S = 10.0


class PushingHost(Protocol):
    """A host that pushes its Z."""

    name: str

    def pushed_z(self, model: str) -> Array | None:
        """Z of all aligned rows, None if it is not complete."""
        ...


@dataclass(frozen=True)
class _Scored:
    """The scores of one model, [rows] or [rows, K], and what they were computed from."""

    served: ServedModel
    z_of_hosts: list[Array]
    scores: Array

    def is_of(self, served: ServedModel, z_of_hosts: Sequence[Array]) -> bool:
        is_same = [one is other for one, other in zip(self.z_of_hosts, z_of_hosts, strict=True)]
        return self.served is served and all(is_same)


class PushedScores:
    """A context manager whose thread scores all rows of each new model.

    It computes half of the time, so that requests do not wait for it. The scores are in a temporary
    file in `folder`, which is mapped: they need no memory that the system cannot take back.
    """

    def __init__(
        self,
        current: Callable[[], ServedModel | None],
        rows: ServedRows,
        hosts: Sequence[PushingHost],
        folder: Path,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._current = current
        self._rows = rows
        self._hosts = {host.name: host for host in hosts}
        self._folder = folder
        self._say = say
        self._scored: _Scored | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pushed-scores", daemon=True)

    def __enter__(self) -> PushedScores:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(_STOP_S)

    def find(self, served: ServedModel, numbers: Sequence[int]) -> list[Any] | None:
        """The scores of rows of the alignment; None if they are not computed."""
        scored = self._scored
        if scored is None or scored.served is not served:
            return None
        return [scored.scores[number].tolist() for number in numbers]

    def wake(self) -> None:
        """Look for a change soon: a host pushed its Z."""
        self._wake.set()

    def look(self) -> None:
        """Score all rows of the current model if that was not done."""
        served = self._current()
        if served is None:
            return
        z_of_hosts = [self._hosts[name].pushed_z(served.name) for name in served.model.facts.hosts]
        complete = [z_ND for z_ND in z_of_hosts if z_ND is not None]
        if len(complete) < len(z_of_hosts) or not self._rows.num_aligned:
            return
        if self._scored is None or not self._scored.is_of(served, complete):
            self._scored = None  # also frees the file of the former model
            scores = self._score(served, complete)
            self._scored = None if scores is None else _Scored(served, complete, scores)

    def _run(self) -> None:
        failed: ServedModel | None = None
        while not self._stop.is_set():
            self._wake.wait(_POLL_S)
            self._wake.clear()
            if failed is not None and self._current() is failed:
                continue
            try:
                self.look()
            except Exception as error:  # of the disk or a user's module: requests compute scores
                failed = self._current()
                self._say(f"scores are not computed in advance: {error}")

    def _score(self, served: ServedModel, z_of_hosts: list[Array]) -> Array | None:
        """The scores of all aligned rows; None if it was stopped."""
        num_rows = self._rows.num_aligned
        scores: Array | None = None
        for start in range(0, num_rows, MAX_FEW):
            started = time.monotonic()
            stop = min(start + MAX_FEW, num_rows)
            inputs = served.rows.take(self._rows.rows(range(start, stop)))
            with np.errstate(all="ignore"):  # the scores are checked when they are used
                own_z = served.few_rows.own_z(inputs)
                some = served.few_rows.scores(own_z, [z_ND[start:stop] for z_ND in z_of_hosts])
            if scores is None:
                scores = self._map((num_rows, *np.shape(some[0])))
            scores[start:stop] = some
            if self._stop.wait(time.monotonic() - started):
                return None
        return scores

    def _map(self, shape: tuple[int, ...]) -> Array:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder) as file:  # mapped, it lives on unnamed
            return np.asarray(np.memmap(file, np.float64, "w+", shape=shape))
