"""Reads a run folder, for reports, the dashboard and the doctor.

It reads what `celu.run_folder` writes, and never writes to the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from celu.errors import ConfigError
from celu.events import (
    Attempt,
    Evaluated,
    Event,
    ModelTested,
    RoundDone,
    RoundEvent,
    TrainingStarted,
    TuningChosen,
    is_deep,
)
from celu.record.compaction import compact, surviving
from celu.record.settings import check_settings
from celu.record.tail import EVENTS, read_new_events

_Event = TypeVar("_Event", bound=Event)
_E = TypeVar("_E", bound=RoundEvent)


class RunRecord:
    """One party's run, as read from its folder. `refresh` reads what was written since.

    With `max_bytes` it reads only part of a large file at a time, so call `refresh` until there is
    nothing new. Raises ConfigError for a folder that holds no run, naming what is missing or
    broken.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self.settings: Mapping[str, Any] = {}  # the contract ("job") and the party's own ("party")
        self.versions: Mapping[str, str] = {}
        self.summary: Mapping[str, Any] | None = None  # None while the run is running
        self.events: list[Event] = []
        self.num_read = 0  # events, those that `compact` dropped included
        self._position = 0
        self._surviving_cache: dict[type[RoundEvent], list[Any]] = {}  # until new events are read
        self.refresh()

    def refresh(self) -> list[Event]:
        """Read and return the new events; if another run now uses the folder, all of its events."""
        if (self.path / EVENTS).exists() and (self.path / EVENTS).stat().st_size < self._position:
            self.events, self.num_read, self._position = [], 0, 0
            self._surviving_cache.clear()
        # The summary first: it is written after the last event, so no event can be missed.
        summary = self._read("summary.json")
        new, self._position = read_new_events(self.path, self._position, self._max_bytes)
        if new or not self.events:
            settings = self._read("settings.json")
            if settings is None:
                raise ConfigError(
                    f"{self.path}: not a run folder, settings.json is missing; "
                    "pass the folder that celu run or celu simulate printed"
                )
            check_settings(self.path / "settings.json", settings)
            self.versions = settings.pop("versions", {})
            self.settings = settings
        self.events += new
        self.num_read += len(new)
        self.summary = summary
        if new:
            self._surviving_cache.clear()
        return new

    def drop_spans(self, keep_last: int) -> None:
        """Free the spans and tables of all but the last events: they take most of the memory.

        For a reader that follows a run and shows spans of its most recent rounds only.
        """
        with_spans = [i for i, event in enumerate(self.events) if _is_large(event)]
        for i in with_spans[: max(0, len(with_spans) - keep_last)]:
            self.events[i] = self.events[i].model_copy(update={"spans": [], "table": None})
        self._surviving_cache.clear()

    def compact(self) -> None:
        """Drop events that a live view does not need, for a reader that follows a long run."""
        self.events = compact(self.events, self.metric)
        self._surviving_cache.clear()

    @property
    def job(self) -> Mapping[str, Any]:
        """The contract at the start of the run."""
        job: Mapping[str, Any] = self.settings.get("job", {})
        return job

    @property
    def name(self) -> str:
        """The party's name."""
        return str(self.settings.get("party", {}).get("name", self.job.get("guest", "guest")))

    @property
    def role(self) -> str:
        """`guest` or `host`."""
        return "host" if self.name in self.job.get("hosts", {}) else "guest"

    @property
    def run_id(self) -> str | None:
        """The same for all parties of a run; None for a run that never started."""
        identity = self._read("run.json") or self.settings.get("simulated", {})
        return str(identity["run"]) if "run" in identity else None

    @property
    def metric(self) -> str:
        """The contract's metric, or the loss if the guest's loss does not report that metric."""
        metric = str(self.job.get("evaluation", {}).get("metric", "loss"))
        evaluations = self.evaluations
        return metric if not evaluations or metric in evaluations[-1].metrics else "loss"

    @property
    def status(self) -> str:
        """`done`, the error it ended with, or `running`, also for a process that was killed."""
        return "running" if self.summary is None else str(self.summary.get("status", "done"))

    @property
    def num_rounds(self) -> int | None:
        """The run's total number of rounds; None before training started."""
        starts = self.of_type(TrainingStarted)
        return starts[-1].num_rounds if starts else None

    @property
    def rounds(self) -> list[RoundDone]:
        """In order, without those that a resumed run repeats."""
        return self._surviving(RoundDone)

    @property
    def evaluations(self) -> list[Evaluated]:
        """In order, without those that a resumed run repeats."""
        return self._surviving(Evaluated)

    @property
    def tested(self) -> ModelTested | None:
        """The test rows' metrics with the best weights; None for a run without validation rows."""
        tested = self._surviving(ModelTested)
        return tested[-1] if tested else None

    @property
    def choices(self) -> list[TuningChosen]:
        """In order, without those that a resumed run repeats."""
        return self._surviving(TuningChosen)

    @property
    def attempts(self) -> int:
        """How many times the party was started."""
        attempts = self.of_type(Attempt)
        return attempts[-1].number if attempts else 0

    @property
    def checkpoints(self) -> list[int]:
        """The rounds whose checkpoints are in the folder now."""
        names = (path.name for path in (self.path / "checkpoints").glob("round-*"))
        return sorted(int(n[6:]) for n in names if re.fullmatch(r"round-\d+", n))

    def of_type(self, kind: type[_Event]) -> list[_Event]:
        """The events of a type, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def _surviving(self, kind: type[_E]) -> list[_E]:
        """Events that were not rolled back: a run resumed after round r repeats later rounds."""
        if kind not in self._surviving_cache:
            self._surviving_cache[kind] = surviving(self.events, kind)
        return list(self._surviving_cache[kind])

    def _read(self, name: str) -> dict[str, Any] | None:
        """A JSON object of the folder; None if the file is missing."""
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path}: expected JSON as celu writes it, got something else ({error})"
            ) from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: expected a JSON object, got {type(content).__name__}")
        if is_deep(content):
            raise ConfigError(f"{path}: expected JSON as celu writes it, got too many levels")
        return content


def _is_large(event: Event) -> bool:
    return isinstance(event, RoundDone) and bool(event.spans or event.table)
