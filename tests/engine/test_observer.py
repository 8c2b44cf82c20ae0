"""The numbers in an observer's reports."""

from __future__ import annotations

import pytest
import torch

import celu
from celu.engine.observer import Observer
from celu.engine.round_report import quantiles
from celu.engine.spans import Spans
from celu.events import SIMILARITY_QUANTILES, ignore
from celu.workset.workset import Workset


@pytest.mark.parametrize("count", [1, 2, 3, 10, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantiles_equal_those_of_torch(count: int, dtype: torch.dtype) -> None:
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    expected = torch.quantile(numbers.float(), torch.tensor(SIMILARITY_QUANTILES))
    torch.testing.assert_close(torch.tensor(quantiles(numbers)), expected)


def test_an_evaluation_between_measured_rounds_is_not_measured() -> None:
    now = [0.0]
    observer = Observer(ignore, [], 100, 1, Spans(lambda: now[0]))
    workset = Workset.from_job(celu.Job(rounds=1, hosts={}), "guest")
    observer.start_measuring(workset)
    now[0] += 2
    with observer.waiting():
        now[0] += 1
    with observer.evaluating(), observer.waiting():
        now[0] += 10
    timings = observer.timings(4, workset)
    assert (timings.seconds, timings.waited_s) == (3, 1)


def test_a_cycle_is_as_many_rounds_as_are_in_flight_without_evaluations_and_outages() -> None:
    now = [0.0]
    observer = Observer(ignore, [], 100, 1000, Spans(lambda: now[0]))
    workset = Workset.from_job(celu.Job(rounds=1, hosts={}), "guest")
    observer.start_segment()
    assert observer.cycles_s(2, 20) == (0, 0)  # nothing is known yet
    for round_ in range(24):  # two rounds at once every 3 seconds; the first ones are quicker
        with observer.waiting():
            now[0] += (2 if round_ < 4 else 3) if round_ % 2 == 0 else 0
            now[0] += 600 if round_ == 12 else 0  # the link is down
        if round_ % 8 == 7:
            with observer.evaluating():
                now[0] += 50
        observer.round_done(round_, workset, 0.1)
    assert observer.cycles_s(2, 20) == pytest.approx((3, 2))
    assert observer.cycles_s(4, 20) == pytest.approx((6, 5))
    assert observer.cycles_s(4, 6) == (0, 0)  # too few
    observer.start_segment()
    assert observer.cycles_s(2, 20) == (0, 0)
