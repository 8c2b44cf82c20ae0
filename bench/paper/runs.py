"""The runs of a study: each is executed once, by a pool of processes, and cached in `runs.jsonl`.

A run is a spec and a seed; its result is plain JSON. It is appended to the file as soon as it ends,
under a key made of everything that it depends on: the version, the task with its sizes, the spec
and the seed. A study that is killed loses only the runs in progress, and parts that need the same
run share it.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch

import celu
from bench.pair import Pair, open_pair
from bench.paper.profiles import Profile, Task
from bench.paper.stores import Stores
from bench.report import Log
from celu.errors import CeluError, ConfigError
from celu.run_folder import hardware, versions

_MAX_RUN_S = 3600.0

Values = dict[str, Any]
T = TypeVar("T")


class RunSpec(Protocol):
    """A run without its seed: a frozen dataclass of plain values and settings.

    `kind` and the names of the fields are part of the key in `runs.jsonl`: renaming one would
    execute every such run again.
    """

    kind: ClassVar[str]

    @property
    def task(self) -> str:
        """The name of the task in the profile."""
        ...

    @property
    def cost(self) -> float:
        """Relative duration: the longest runs start first."""
        ...

    def execute(self, task: Task, pair: Pair, seed: int) -> Values:
        """Run it and return the result as JSON values."""
        ...


Request = tuple[RunSpec, int]  # with a seed


class MissingRuns(Exception):
    """Some of the requested runs are not in the cache."""

    def __init__(self, requests: list[Request]) -> None:
        super().__init__(f"{len(requests)} runs are not in the cache")
        self.requests = requests


def gather(calls: Iterable[Callable[[], T]]) -> list[T]:
    """The result of each call. If several raise MissingRuns, raise one with all their requests."""
    results, missing = [], []
    for call in calls:
        try:
            results.append(call())
        except MissingRuns as error:
            missing += error.requests
    if missing:
        raise MissingRuns(missing)
    return results


class RunCache:
    """Returns the results of runs and executes those that it does not have. Use it with `with`.

    Raises ConfigError if `runs.jsonl` exists and is something else.
    """

    def __init__(
        self, folder: Path, profile: Profile, stores: Stores, workers: int, log: Log
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "runs.jsonl"
        self._profile = profile
        self._stores = stores
        self._workers = workers
        self._log = log
        self._records = _read(self._file)  # by key, one record per line
        self._used: set[str] = set()
        self._cached_only = False
        # Reused by later calls: the worker processes hold the data in memory.
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker processes after their current run."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    @contextmanager
    def cached_only(self) -> Iterator[None]:
        """Within this context `run` executes nothing; it raises MissingRuns instead."""
        self._used.clear()
        self._cached_only = True
        try:
            yield
        finally:
            self._cached_only = False

    def run(self, requests: Iterable[Request]) -> dict[Request, Values]:
        """The result of each request, in order. Raises the error of a run that fails."""
        wanted = list(dict.fromkeys(requests))
        keys = {request: self._key(*request) for request in wanted}
        missing = [request for request in wanted if keys[request] not in self._records]
        if missing and self._cached_only:
            raise MissingRuns(missing)
        if 0 < len(missing) < len(wanted):
            found = len(wanted) - len(missing)
            self._log(f"{found} of {len(wanted)} runs are in {self._file}; the others start now")
        missing.sort(key=lambda request: -request[0].cost)
        for done, (request, values, took_s) in enumerate(self._execute_all(missing), start=1):
            self._append(request, keys[request], values, took_s)
            self._log(
                f"{done} of {len(missing)}: {request[0]}, seed {request[1]} (took {took_s:.1f} s)"
            )
        self._used |= set(keys.values())
        return {request: self._records[keys[request]]["values"] for request in wanted}

    def environment(self) -> Values:
        """The versions and hardware of the runs that were used in the last `cached_only`.

        They are those of another machine if `runs.jsonl` was copied from there.
        """
        made: dict[str, list[Values]] = {what: [] for what in ("versions", "hardware")}
        for key in sorted(self._used):
            for what, found in made.items():
                if self._records[key][what] not in found:
                    found.append(self._records[key][what])
        return {what: found[0] if len(found) == 1 else found for what, found in made.items()}

    def _execute_all(self, requests: list[Request]) -> Iterator[tuple[Request, Values, float]]:
        tasks = self._profile.tasks
        names = {spec.task for spec, _ in requests}
        folders = {name: self._stores.folder_for(tasks[name]) for name in names}
        calls = [(spec, tasks[spec.task], folders[spec.task], seed) for spec, seed in requests]
        if self._workers == 1:
            for request, call in zip(requests, calls, strict=True):
                yield request, *_execute(*call)
            return
        # So that the column files are written once, not by each worker.
        for folder in folders.values():
            open_pair(folder, "cpu")
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
            self._pool = ProcessPoolExecutor(self._workers, spawn)
        pool = self._pool
        futures = {
            pool.submit(_execute, *call): request
            for request, call in zip(requests, calls, strict=True)
        }
        failed: BaseException | None = None
        try:
            for future in as_completed(futures, timeout=_MAX_RUN_S * len(requests)):
                if future.cancelled():
                    continue
                error = future.exception()
                if error is None:
                    yield futures[future], *future.result()
                elif failed is None:
                    failed = error
                    for other in futures:  # runs in progress still end and are cached
                        other.cancel()
        except TimeoutError as error:
            failed = error
        if isinstance(failed, BrokenProcessPool | TimeoutError):
            why = "took too long" if isinstance(failed, TimeoutError) else "died"
            raise CeluError(
                f"a worker process {why}; is there enough memory for {self._workers}? Start the "
                f"same command with fewer --workers: it resumes from {self._file}"
            ) from failed
        if failed is not None:
            raise failed

    def _key(self, spec: RunSpec, seed: int) -> str:
        facts = [celu.__version__, self._profile.tasks[spec.task], spec.kind, spec, seed]
        return json.dumps(facts, default=_to_json, sort_keys=True)

    def _append(self, request: Request, key: str, values: Values, took_s: float) -> None:
        record = {
            "key": key,
            "profile": self._profile.name,
            "run": str(request[0]),
            "seed": request[1],
            "took_s": round(took_s, 2),
            "versions": versions(),
            "hardware": hardware(),
            "values": values,
        }
        self._records[key] = record
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _read(file: Path) -> dict[str, Values]:
    """The records of the file by key. An incomplete last line is removed from the file."""
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text, encoding="utf-8")
    try:
        return {record["key"]: record for record in map(json.loads, text.splitlines())}
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file} is not a file of runs of this study; choose another --out, or remove the file"
        ) from error


def _to_json(value: Any) -> Any:
    if isinstance(value, celu.Method):
        return value.model_dump(exclude_unset=True)
    return {field.name: getattr(value, field.name) for field in fields(value)}


@lru_cache(maxsize=4)
def _open_cached(folder: Path, device: str) -> Pair:
    return open_pair(folder, device)


def _execute(spec: RunSpec, task: Task, folder: Path, seed: int) -> tuple[Values, float]:
    """Run in this process; return the result and the seconds that it took."""
    torch.set_num_threads(1)
    pair = _open_cached(folder, task.shape.device)
    started = time.perf_counter()
    return spec.execute(task, pair, seed), time.perf_counter() - started
