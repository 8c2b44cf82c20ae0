"""A run folder as a value, for whatever shows runs: reports, the dashboard, exports.

It reads what `celu.run_folder` wrote. Nothing is ever written to the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from celu.errors import ConfigError
from celu.events import Evaluated, Event, RoundDone, RoundEvent, TrainingStarted, TuningChosen
from celu.record.tail import EVENTS, follow

_LINKS = ("link_down", "link_up", "restart")
_E = TypeVar("_E", bound=RoundEvent)


class RunRecord:
    """One party's run: what its folder holds. `refresh` adds what has happened since.

    Raises ConfigError for a folder that holds no run, naming what is missing or broken.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: Mapping[str, Any] = {}  # the contract ("job") and the party's own ("party")
        self.versions: Mapping[str, str] = {}
        self.summary: Mapping[str, Any] | None = None  # None while the run is going on
        self.events: list[Event] = []
        self._position = 0
        self._holding: dict[type[RoundEvent], list[Any]] = {}  # by kind, until there are new events
        self.refresh()

    def refresh(self) -> list[Event]:
        """Read on; the events that are new. Where another run took the folder, all are."""
        if (self.path / EVENTS).exists() and (self.path / EVENTS).stat().st_size < self._position:
            self.events, self._position = [], 0
            self._holding.clear()
        # The summary first: one that is there has no event after it, unless the run goes on.
        summary = self._read("summary.json")
        new, self._position = follow(self.path, self._position)
        if new or not self.events:
            settings = self._read("settings.json")
            if settings is None:
                raise ConfigError(
                    f"{self.path}: expected a run folder with settings.json, got one without; "
                    "name the folder that celu run or celu simulate printed"
                )
            self.versions = settings.pop("versions", {})
            self.settings = settings
        self.events += new
        self.summary = summary
        if new:
            self._holding.clear()
        return new

    def forget_spans(self, keep: int) -> None:
        """Let go of spans and tables of all but the last reports: what takes most memory.

        For a reader that stays with a run, and shows these of the latest rounds alone.
        """
        having = [i for i, event in enumerate(self.events) if _is_large(event)]
        for i in having[: max(0, len(having) - keep)]:
            self.events[i] = self.events[i].model_copy(update={"spans": [], "table": None})
        self._holding.clear()

    @property
    def job(self) -> Mapping[str, Any]:
        """The contract, as it was when the run began."""
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
        """What the folders of all parties of a run have in common; None where it never began."""
        kept = self._read("run.json") or self.settings.get("simulated", {})
        return str(kept["run"]) if "run" in kept else None

    @property
    def metric(self) -> str:
        """The contract's metric, or the loss where the guest's loss gives no such metric."""
        metric = str(self.job.get("evaluation", {}).get("metric", "loss"))
        given = self.evaluations
        return metric if not given or metric in given[-1].metrics else "loss"

    @property
    def status(self) -> str:
        """`done`, the error it ended with, or `running`: without an end, however that came."""
        return "running" if self.summary is None else str(self.summary.get("status", "done"))

    @property
    def num_rounds(self) -> int | None:
        """How many rounds it has in all; None before training began."""
        begun = [event for event in self.events if isinstance(event, TrainingStarted)]
        return begun[-1].num_rounds if begun else None

    @property
    def rounds(self) -> list[RoundDone]:
        """In order; what an interruption undid is left out."""
        return self._kept(RoundDone)

    @property
    def evaluations(self) -> list[Evaluated]:
        """In order; what an interruption undid is left out."""
        return self._kept(Evaluated)

    @property
    def choices(self) -> list[TuningChosen]:
        """In order; what an interruption undid is left out."""
        return self._kept(TuningChosen)

    @property
    def link_events(self) -> list[Event]:
        """Links that went down and came up, and conversations that began again."""
        return self.named(*_LINKS)

    @property
    def attempts(self) -> int:
        """How many times the party was started."""
        return len(self.named("attempt"))

    @property
    def checkpoints(self) -> list[int]:
        """After which rounds the folder holds a checkpoint now."""
        names = (path.name for path in (self.path / "checkpoints").glob("round-*"))
        return sorted(int(n[6:]) for n in names if re.fullmatch(r"round-\d+", n))

    def named(self, *names: str) -> list[Event]:
        """The events of these names, in order."""
        return [event for event in self.events if event.event in names]

    def _kept(self, kind: type[_E]) -> list[_E]:
        """Those that hold: a run that goes on after round r does the later ones again."""
        if kind not in self._holding:
            kept: list[_E] = []
            for event in self.events:
                if isinstance(event, TrainingStarted):
                    kept = [
                        earlier for earlier in kept if not earlier.is_rolled_back_by(event.round)
                    ]
                elif isinstance(event, kind):
                    kept.append(event)
            self._holding[kind] = kept
        return list(self._holding[kind])

    def _read(self, name: str) -> dict[str, Any] | None:
        """A JSON object of the folder; None where there is none."""
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path}: expected JSON as celu writes it, got something else ({error})"
            ) from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: expected a JSON object, got {type(content).__name__}")
        return content


def _is_large(event: Event) -> bool:
    return isinstance(event, RoundDone) and bool(event.spans or event.table)
