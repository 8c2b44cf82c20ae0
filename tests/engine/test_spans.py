"""Spans: what is recorded, by which clock, and how much is reported."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import pytest

import celu
from celu.config.link import LinkSettings
from celu.engine.observer import Observer
from celu.engine.spans import MAX_SPANS, Spans
from celu.transport.message import TrafficBothWays
from celu.workset.workset import Workset
from federation import federation

ACTIVITIES = {"compute", "local", "encode", "wait", "evaluate"}


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def test_an_inner_activity_interrupts_the_outer_one_which_then_continues() -> None:
    clock = ManualClock()
    spans = Spans(clock)
    with spans.record("compute") as whole:
        clock.at = 1.0
        with spans.record("encode") as inner:
            clock.at = 3.0
        clock.at = 6.0
    clock.at = 7.0
    with spans.record("wait"):  # takes no time, so it is not recorded
        pass
    assert (whole.seconds, inner.seconds) == (6.0, 2.0)
    assert spans.drain() == [("compute", 0.0, 1.0), ("encode", 1.0, 3.0), ("compute", 3.0, 6.0)]
    assert spans.drain() == []


def reports(report_every: int, rounds: int, *, messages: int = 1) -> list[dict[str, Any]]:
    """The reports of rounds that take three seconds: two of waiting, one of computing."""
    clock, traffic, found = ManualClock(), TrafficBothWays(), []
    spans = Spans(clock)
    observer = Observer(
        lambda event: found.append(event.fields), [traffic], rounds, report_every, spans
    )
    fed = federation()
    workset = Workset.from_job(fed.job, "host")
    for round_ in range(rounds):
        with observer.waiting():
            clock.at += 2.0
        for _ in range(messages):
            traffic.received.spans.append((clock.at - 1.0, clock.at))
        with observer.computing():
            clock.at += 1.0
        observer.round_done(round_, workset, 0.1)
    return found


def test_a_report_has_the_spans_since_the_last_one() -> None:
    first, second = reports(1, 2)
    assert first["spans"] == [("wait", 0, 2), ("receive", 1, 2), ("compute", 2, 3)]
    assert second["spans"] == [("wait", 3, 5), ("receive", 4, 5), ("compute", 5, 6)]


def test_a_report_has_the_spans_of_the_latest_eight_rounds_only() -> None:
    (report,) = reports(50, 50)
    assert len(report["spans"]) == 3 * 8
    assert report["spans"][0] == ("wait", 42 * 3.0, 42 * 3.0 + 2.0)


def test_the_number_of_spans_is_bounded_however_many_messages_there_are() -> None:
    (report,) = reports(8, 8, messages=500)
    assert len(report["spans"]) <= MAX_SPANS
    assert report["spans"][-1] == ("compute", 23.0, 24.0)


def simulated(**method: Any) -> dict[str, list[dict[str, Any]]]:
    """The `round` events of each party over a slow link in virtual time.

    Computing takes as long as a timer says, which advances by a millisecond whenever it is read.
    """
    ticks = count()
    fed = federation(method=celu.Method(**method), codec="int8", hosts={"host": 64})
    found: dict[str, list[dict[str, Any]]] = {"guest": [], "host": []}

    def listen(name: str) -> Any:
        return lambda event: found[name].append(event.fields) if event.event == "round" else None

    celu.simulate(
        fed.job,
        fed.guest,
        fed.hosts,
        link=LinkSettings(mbps=0.1, delay_ms=500.0),
        timer=lambda: next(ticks) / 1000,
        callbacks=[listen("guest")],
        host_callbacks={"host": [listen("host")]},
    )
    return found


@pytest.mark.parametrize("depth", [1, 3])
def test_a_simulated_link_records_when_messages_were_on_it(depth: int) -> None:
    found = simulated(R=2, W=2, depth=depth)
    sent, received = (
        [(a, b) for event in found[name] for what, a, b in event["spans"] if what == kind]
        for name, kind in (("guest", "send"), ("host", "receive"))
    )
    assert len(received) == 14 and len(sent) == 14
    durations = [b - a for a, b in sent]
    assert durations == pytest.approx([b - a for a, b in received], abs=1e-4)
    assert min(durations) > 0.15, "two kilobytes on a link of 0.1 Mbps"
    # The parties' clocks have an offset, so only equal differences are expected.
    delays = [there[1] - here[1] for here, there in zip(sent, received, strict=True)]
    assert delays == pytest.approx([delays[0]] * len(delays), abs=1e-3)
    for events in found.values():
        assert all(b.keys() >= {"spans"} for b in events)


def test_activities_do_not_overlap_and_account_for_all_time() -> None:
    for events in simulated(R=2, W=2).values():
        spans = [s for event in events for s in event["spans"] if s[0] in ACTIVITIES]
        assert {what for what, _, _ in spans} == ACTIVITIES
        assert all(a[2] <= b[1] + 1e-5 for a, b in pairwise(spans))
        waited = sum(b - a for what, a, b in spans if what == "wait")
        assert waited == pytest.approx(events[-1]["waited_s"], rel=0.02)
        total = sum(b - a for _, a, b in spans)
        assert total == pytest.approx(events[-1]["seconds"], rel=0.1)


def test_a_report_shows_the_workset_table() -> None:
    events = simulated(R=3, W=4)["guest"]
    for event in events:
        rounds = [round_ for round_, _, _ in event["table"]]
        assert rounds == sorted(rounds) and set(rounds) <= set(
            range(event["round"] - 3, event["round"] + 1)
        )
        for _, uses, similarity in event["table"]:
            assert 1 <= uses <= 2, "an entry used three times is evicted"
            assert (similarity is None) == (uses == 1)
            assert similarity is None or -1.0001 <= similarity <= 1.0001
    assert 0.0 < events[-1]["staleness"] < 4.0


@pytest.mark.parametrize("method", [{"R": 1}, {"R": 2, "W": 65}])
def test_no_table_is_reported_with_r_1_or_if_it_is_large(method: dict[str, int]) -> None:
    assert not any("table" in event for event in simulated(**method)["host"])
