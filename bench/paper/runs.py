"""The runs of a study: each done once, over as many processes as there are, and kept as it ends.

A run is a piece of work and a seed; what comes of it is plain values. It is appended to
`runs.jsonl` the moment it ends, and found there by all that it depends on: the version, the task
with its sizes, the work and the seed. So a study that is killed loses what was under way alone, and
parts that need the same run share it.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch

import celu
from bench.pair import Pair, open_pair
from bench.paper.profiles import Profile, Task
from bench.paper.stores import Stores
from bench.report import Say
from celu.errors import CeluError, ConfigError
from celu.run_folder import hardware, versions

_MOST_S = 3600.0  # that one run may take

Values = dict[str, Any]
T = TypeVar("T")


class Work(Protocol):
    """A run but for its seed: a frozen dataclass of plain values and settings."""

    @property
    def task(self) -> str:
        """The name of what is trained."""
        ...

    @property
    def cost(self) -> float:
        """How long it takes, against other work: the longest are begun first."""
        ...

    def perform(self, task: Task, pair: Pair, seed: int) -> Values:
        """Do it; what comes of it, as JSON has it."""
        ...


Asked = tuple[Work, int]  # with a seed


class Lacking(Exception):
    """Runs that were asked for are not done yet."""

    def __init__(self, asked: list[Asked]) -> None:
        super().__init__(f"{len(asked)} runs are not done yet")
        self.asked = asked


def together(asking: Iterable[Callable[[], T]]) -> list[T]:
    """What each gives. Where several lack runs, Lacking tells those of all of them."""
    given, lacking = [], []
    for ask in asking:
        try:
            given.append(ask())
        except Lacking as error:
            lacking += error.asked
    if lacking:
        raise Lacking(lacking)
    return given


class Runs:
    """Does what is asked for, or finds it done. Close it, or use `with`.

    Raises ConfigError where `runs.jsonl` holds something else.
    """

    def __init__(
        self, folder: Path, profile: Profile, stores: Stores, workers: int, say: Say
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "runs.jsonl"
        self._profile = profile
        self._stores = stores
        self._workers = workers
        self._say = say
        self._kept = _read(self._file)  # by key: lines of the file
        self._used: set[str] = set()
        self._only_known = False
        # Kept from one question to the next, as they hold the data.
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes, once they have done what they are at."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    @contextmanager
    def only_known(self) -> Iterator[None]:
        """In here nothing is run: asking for what is not done yet raises Lacking."""
        self._used.clear()
        self._only_known = True
        try:
            yield
        finally:
            self._only_known = False

    def run(self, asked: Iterable[Asked]) -> dict[Asked, Values]:
        """What came of each, in the order asked; raises what a run raises."""
        wanted = list(dict.fromkeys(asked))
        keys = {one: self._key(*one) for one in wanted}
        missing = [one for one in wanted if keys[one] not in self._kept]
        if missing and self._only_known:
            raise Lacking(missing)
        if 0 < len(missing) < len(wanted):
            found = len(wanted) - len(missing)
            self._say(f"{found} of {len(wanted)} runs are in {self._file} and are not done again")
        missing.sort(key=lambda one: -one[0].cost)
        for done, (one, values, took_s) in enumerate(self._performed(missing), start=1):
            self._keep(one, keys[one], values, took_s)
            self._say(f"{done} of {len(missing)}: {one[0]}, seed {one[1]} (took {took_s:.1f} s)")
        self._used |= set(keys.values())
        return {one: self._kept[keys[one]]["values"] for one in wanted}

    def made_with(self) -> Values:
        """On which machines, with which software, what was last asked for in `only_known` was run.

        It may be drawn elsewhere.
        """
        made: dict[str, list[Values]] = {what: [] for what in ("versions", "hardware")}
        for key in sorted(self._used):
            for what, found in made.items():
                if self._kept[key][what] not in found:
                    found.append(self._kept[key][what])
        return {what: found[0] if len(found) == 1 else found for what, found in made.items()}

    def _performed(self, asked: list[Asked]) -> Iterator[tuple[Asked, Values, float]]:
        tasks = self._profile.tasks
        places = {name: self._stores.of(tasks[name]) for name in {work.task for work, _ in asked}}
        calls = [(work, tasks[work.task], places[work.task], seed) for work, seed in asked]
        if self._workers == 1:
            for one, call in zip(asked, calls, strict=True):
                yield one, *_perform(*call)
            return
        for place in places.values():  # laid out once, not by every worker
            open_pair(place, "cpu")
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")  # torch's threads do not outlive a fork
            self._pool = ProcessPoolExecutor(self._workers, spawn)
        pool = self._pool
        futures = {
            pool.submit(_perform, *call): one for one, call in zip(asked, calls, strict=True)
        }
        failed: BaseException | None = None
        try:
            for future in as_completed(futures, timeout=_MOST_S * len(asked)):
                if future.cancelled():
                    continue
                error = future.exception()
                if error is None:
                    yield futures[future], *future.result()
                elif failed is None:
                    failed = error
                    for other in futures:  # what is under way is still kept, nothing is begun
                        other.cancel()
        except TimeoutError as error:
            failed = error
        if isinstance(failed, BrokenProcessPool | TimeoutError):
            why = "took too long" if isinstance(failed, TimeoutError) else "ended"
            raise CeluError(
                f"a worker process {why}; is there memory for {self._workers}? Start again to go "
                f"on from {self._file}, with fewer --workers"
            ) from failed
        if failed is not None:
            raise failed

    def _key(self, work: Work, seed: int) -> str:
        facts = [celu.__version__, self._profile.tasks[work.task], type(work).__name__, work, seed]
        return json.dumps(facts, default=_plain, sort_keys=True)

    def _keep(self, one: Asked, key: str, values: Values, took_s: float) -> None:
        record = {
            "key": key,
            "profile": self._profile.name,
            "run": str(one[0]),
            "seed": one[1],
            "took_s": round(took_s, 2),
            "versions": versions(),
            "hardware": hardware(),
            "values": values,
        }
        self._kept[key] = record
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _read(file: Path) -> dict[str, Values]:
    """What is kept, by its key; a line that was torn is left out."""
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):  # so that the next line begins a line
        text = text[: text.rfind("\n") + 1]
        file.write_text(text, encoding="utf-8")
    try:
        return {record["key"]: record for record in map(json.loads, text.splitlines())}
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file}: expected the runs of a study, one a line, got something else; choose another "
            "--out, or remove it"
        ) from error


def _plain(value: Any) -> Any:
    """Settings and dataclasses, for JSON."""
    if isinstance(value, celu.Method):
        return value.model_dump(exclude_unset=True)
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@lru_cache(maxsize=4)
def _opened(folder: Path, device: str) -> Pair:
    return open_pair(folder, device)


def _perform(work: Work, task: Task, folder: Path, seed: int) -> tuple[Values, float]:
    """In this process; with how long it took."""
    torch.set_num_threads(1)
    pair = _opened(folder, task.shape.device)
    started = time.perf_counter()
    return work.perform(task, pair, seed), time.perf_counter() - started
