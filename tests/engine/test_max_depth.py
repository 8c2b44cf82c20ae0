"""A host fills its pipeline before it receives anything: no depth may make all parties wait."""

from __future__ import annotations

import celu
from celu.config.job import MAX_DEPTH
from celu.transport.delivery import MIN_UNACKED_MESSAGES
from celu.transport.memory import CAPACITY
from federation import federation


def test_a_run_with_as_many_rounds_in_flight_as_a_contract_allows_ends() -> None:
    fed = federation(rounds=2 * MAX_DEPTH, method=celu.Method(depth=MAX_DEPTH))
    assert celu.simulate(fed.job, fed.guest, fed.hosts).rounds == 2 * MAX_DEPTH


def test_the_buffers_of_both_directions_hold_all_rounds_in_flight() -> None:
    # What the host has sent waits in one buffer, and the guest's answers in the other.
    assert 2 * MIN_UNACKED_MESSAGES >= MAX_DEPTH
    assert 2 * CAPACITY >= MAX_DEPTH
