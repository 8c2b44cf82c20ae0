"""Runs of a bench in worker processes."""

from __future__ import annotations

from functools import partial

import pytest

from bench.parallel_runs import run_all
from celu.errors import ConfigError


def source(number: int) -> int:
    return number


def plus(added: int, opened: int) -> int:
    if added < 0:
        raise ConfigError("negative")
    return opened + added


@pytest.mark.parametrize("workers", [1, 2])
def test_every_run_starts_from_the_opened_source_in_any_number_of_processes(workers: int) -> None:
    runs = [partial(plus, n) for n in range(4)]
    lines: list[str] = []
    found = run_all(lines.append, runs, partial(source, 10), workers)
    assert [found[run] for run in runs] == [10, 11, 12, 13]
    assert len(lines) == 4


def test_an_error_of_a_run_in_a_worker_is_the_error_of_the_bench() -> None:
    with pytest.raises(ConfigError, match="negative"):
        run_all(lambda line: None, [partial(plus, -1)], partial(source, 1), 2)
