"""A host's report must hold valid timings."""

from __future__ import annotations

import math
from typing import Any

import pytest

from celu.engine.outcome import Timings
from celu.errors import ProtocolError

TIMINGS = Timings(3, 1.0, 0.5, 0.25, 2, 0.5, 100, 0.99)


def test_a_report_keeps_the_timings_and_the_guest_knows_the_rounds() -> None:
    assert Timings.from_body(TIMINGS.to_body(), 3) == TIMINGS
    assert Timings.from_body({**TIMINGS.to_body(), "rounds": 10**9}, 3) == TIMINGS


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": -1.0},
        {"seconds": True},
        {"seconds": 10**400},
        {"seconds": math.nan},
        {"waited_s": "long"},
        {"local_s": None},
        {"local_steps": 1e300},
        {"transfer_bytes": 5e-324},  # seconds per byte would be infinite
        {"reuse_weight": -0.1},
        {"reuse_weight": math.nan},
        {"reuse_weight": math.inf},
        {"reuse_weight": 1e16},
        {"reuse_weight": "all"},
        {"reuse_weight": True},
        {"another": 1},
    ],
    ids=lambda change: str(change)[:30],
)
def test_a_report_with_invalid_timings_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="REPORT from host: expected valid timings"):
        Timings.from_body({**TIMINGS.to_body(), **change}, 3, "host")


@pytest.mark.parametrize("missing", TIMINGS.to_body())
def test_a_report_without_a_field_is_refused(missing: str) -> None:
    body = {name: value for name, value in TIMINGS.to_body().items() if name != missing}
    with pytest.raises(ProtocolError, match="REPORT"):
        Timings.from_body(body, 3)


@pytest.mark.parametrize("body", [None, [], 3, "timings"])
def test_a_report_that_is_no_object_is_refused(body: Any) -> None:
    with pytest.raises(ProtocolError, match="REPORT"):
        Timings.from_body(body, 3)
