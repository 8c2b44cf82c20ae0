"""Runs of a bench in worker processes, each of which opens the rows for itself."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import torch

from bench.report import Log
from celu.errors import ConfigError

_Source = TypeVar("_Source")
_opened: list[Any] = []  # in a worker process: the one thing that its runs start from


def run_all(
    log: Log,
    runs: Iterable[Callable[[_Source], Any]],
    open_source: Callable[[], _Source],
    workers: int = 1,
) -> dict[Callable[[_Source], Any], Any]:
    """The result of each run, which is called with what `open_source` returns.

    Results are logged as they come. With several workers, all arguments must be picklable. The
    first error ends all runs; raises ConfigError if a worker process dies.
    """
    if workers == 1:
        source, results = open_source(), {}
        for run in runs:
            results[run] = run(source)
            log(f"{run}: {_text(results[run])}")
        return results
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(workers, context, _open, (open_source,)) as pool:
        pending = {pool.submit(_call, run): run for run in runs}
        results = {}
        try:
            for future in as_completed(pending):
                run = pending[future]
                results[run] = future.result()
                log(f"{len(results)} of {len(pending)}: {run}: {_text(results[run])}")
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
