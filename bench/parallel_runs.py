"""Runs of a bench in worker processes, whose results are saved as they come."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import torch

from bench.report import Log
from celu.errors import ConfigError

_Source = TypeVar("_Source")
_opened: list[Any] = []  # in a worker process: the one thing that its runs start from


class SavedRuns:
    """The results of finished runs, a line of JSON each, by the runs as text (`repr`).

    A bench that is started again repeats none of them. It cannot know that code has changed since:
    delete the file then.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._results: dict[str, Any] = {}
        if path is not None and path.exists():
            whole, _, cut = path.read_text(encoding="utf-8").rpartition("\n")
            if cut:  # the bench was stopped while it wrote a line
                path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
            for line in whole.splitlines():
                saved = json.loads(line)
                self._results[saved["run"]] = saved["result"]

    def get(self, run: object) -> Any:
        """The result of a run, None if it has none."""
        return self._results.get(repr(run))

    def add(self, run: object, result: Any) -> None:
        """Save a result."""
        self._results[repr(run)] = result
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": repr(run), "result": result}) + "\n")


def run_all(
    log: Log,
    runs: Iterable[Callable[[_Source], Any]],
    open_source: Callable[[], _Source],
    workers: int = 1,
    saved: SavedRuns | None = None,
) -> dict[Callable[[_Source], Any], Any]:
    """The result of each run, which is called with what `open_source` returns.

    Results are logged as they come. With several workers, all arguments must be picklable. The
    first error ends all runs; raises ConfigError if a worker process dies.
    """
    saved = SavedRuns() if saved is None else saved
    results = {run: saved.get(run) for run in runs}
    missing = [run for run, result in results.items() if result is None]

    def finish(run: Callable[[_Source], Any], result: Any) -> None:
        results[run] = result
        saved.add(run, result)
        done = sum(result is not None for result in results.values())
        log(f"{done} of {len(results)}: {run}: {_text(result)}")

    if workers == 1:
        source = open_source() if missing else None
        for run in missing:
            assert source is not None
            finish(run, run(source))
        return results
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(workers, context, _open, (open_source,)) as pool:
        pending = {pool.submit(_call, run): run for run in missing}
        try:
            for future in as_completed(pending):
                finish(pending[future], future.result())
        except BrokenProcessPool as error:
            raise ConfigError(
                f"--workers: a process of {workers} died; is there enough memory? Use fewer"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return results


def _open(open_source: Callable[[], Any]) -> None:
    torch.set_num_threads(1)
    _opened.append(open_source())


def _call(run: Callable[[Any], Any]) -> Any:
    return run(_opened[0])


def _text(result: Any) -> str:
    values = result.items() if isinstance(result, dict) else [("", result)]
    return ", ".join(f"{k} {v:.4f}".strip() for k, v in values)
