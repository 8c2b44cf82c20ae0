"""The judge of a soak finds leaks, and only leaks."""

from __future__ import annotations

import math

import pytest

from soak.judge import LIMITS, judge
from soak.samples import Sample

MINUTES = 120.0
# Per minute: more than the limit between the middles of the two windows, 67 minutes apart.
LEAKS = {"rss_mib": 0.75, "threads": 0.1, "descriptors": 0.1, "checkpoints": 0.05}


def samples(**per_minute: float) -> list[Sample]:
    """A sample a minute. Some noise, and quantities that grow by this much per minute."""
    made = []
    for minute in range(int(MINUTES)):
        values = {"rss_mib": 400 + 5 * math.sin(minute), "threads": 16 + minute % 3}
        values |= {"descriptors": 20 + minute % 2, "checkpoints": 4}
        values |= {name: values[name] + slope * minute for name, slope in per_minute.items()}
        made.append(
            Sample(
                minute=minute,
                rss_mib=values["rss_mib"],
                threads=int(values["threads"]),
                descriptors=int(values["descriptors"]),
                checkpoints=int(values["checkpoints"]),
                events_mib=minute,
                other_files_mib=0.3,
                log_mib=0.1,
                cpu_s=4.0 * minute,
                rounds=600 * minute,
                links_down=minute // 2,
            )
        )
    return made


def test_a_process_that_stays_as_it_is_is_flat_although_its_events_file_grows() -> None:
    findings = judge(samples(), MINUTES)
    assert [f.quantity for f in findings if not f.is_flat] == []
    assert [f.quantity for f in findings] == list(LIMITS)


@pytest.mark.parametrize("leaking", list(LIMITS))
def test_a_slow_leak_is_found_in_the_quantity_that_grows(leaking: str) -> None:
    findings = judge(samples(**{leaking: LEAKS[leaking]}), MINUTES)
    (found,) = [f for f in findings if not f.is_flat]
    assert found.quantity == leaking
    assert found.per_hour == pytest.approx(60 * LEAKS[leaking], rel=0.2)
    assert f"{leaking} grew from" in found.problem


def test_growth_during_the_warm_up_is_no_leak() -> None:
    cold = [s for s in samples(rss_mib=30.0) if s.minute < MINUTES / 8]
    warm = [s for s in samples() if s.minute >= MINUTES / 8]
    assert all(f.is_flat for f in judge([*cold, *warm], MINUTES))


def test_a_run_that_ended_early_is_not_judged() -> None:
    with pytest.raises(ValueError, match="at least 3 samples in each window, got 46 and 0"):
        judge([s for s in samples() if s.minute < MINUTES * 0.7], MINUTES)
