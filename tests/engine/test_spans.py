"""Where a party's time went: what is noted, on which clock, and how much of it is kept."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import celu
from celu.config.link import LinkSettings
from celu.engine.observer import Observer
from celu.engine.spans import MAX_SPANS, Spans
from celu.transport.message import TrafficBothWays
from celu.workset.workset import Workset
from federation import federation

COMPUTING = {"compute", "local", "encode", "wait", "evaluate"}


class Ticker:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def test_one_thing_is_done_at_a_time_and_what_it_interrupted_goes_on() -> None:
    clock = Ticker()
    spans = Spans(clock)
    with spans.record("compute") as whole:
        clock.at = 1.0
        with spans.record("encode") as inner:
            clock.at = 3.0
        clock.at = 6.0
    clock.at = 7.0
    with spans.record("wait"):  # which takes no time, and is not worth a word
        pass
    assert (whole.seconds, inner.seconds) == (6.0, 2.0)
    assert spans.drain() == [("compute", 0.0, 1.0), ("encode", 1.0, 3.0), ("compute", 3.0, 6.0)]
    assert spans.drain() == []


def reports(report_every: int, rounds: int, *, messages: int = 1) -> list[dict[str, Any]]:
    """The reports of rounds of three seconds each: two of waiting, one of computing."""
    clock, traffic, found = Ticker(), TrafficBothWays(), []
    spans = Spans(clock)
    see = Observer(lambda event: found.append(event.fields), [traffic], rounds, report_every, spans)
    fed = federation()
    workset = Workset.from_job(fed.job, "host")
    for round_ in range(rounds):
        with see.waiting():
            clock.at += 2.0
        for _ in range(messages):
            traffic.received.spans.append((clock.at - 1.0, clock.at))
        with see.computing():
            clock.at += 1.0
        see.round_done(round_, workset, None)
    return found


def test_a_report_tells_the_spans_since_the_last_one() -> None:
    first, second = reports(1, 2)
    assert first["spans"] == [("wait", 0, 2), ("receive", 1, 2), ("compute", 2, 3)]
    assert second["spans"] == [("wait", 3, 5), ("receive", 4, 5), ("compute", 5, 6)]


def test_of_many_rounds_the_latest_eight_are_told() -> None:
    (report,) = reports(50, 50)
    assert len(report["spans"]) == 3 * 8
    assert report["spans"][0] == ("wait", 42 * 3.0, 42 * 3.0 + 2.0)


def test_spans_are_few_however_many_messages_there_are() -> None:
    (report,) = reports(8, 8, messages=500)
    assert len(report["spans"]) <= MAX_SPANS
    assert report["spans"][-1] == ("compute", 23.0, 24.0)


def simulated(**method: Any) -> dict[str, list[dict[str, Any]]]:
    """The `round` events of each party over a slow line in virtual time."""
    fed = federation(method=celu.Method(**method), codec="int8", hosts={"host": 64})
    found: dict[str, list[dict[str, Any]]] = {"guest": [], "host": []}

    def listen(name: str) -> Any:
        return lambda event: found[name].append(event.fields) if event.event == "round" else None

    celu.simulate(
        fed.job,
        fed.guest,
        fed.hosts,
        link=LinkSettings(mbps=0.1, delay_ms=500.0),
        callbacks=[listen("guest")],
        host_callbacks={"host": [listen("host")]},
    )
    return found


@pytest.mark.parametrize("depth", [1, 3])
def test_a_simulated_line_says_when_messages_were_on_it(depth: int) -> None:
    found = simulated(R=2, W=2, depth=depth)
    sent, received = (
        [(a, b) for event in found[name] for what, a, b in event["spans"] if what == kind]
        for name, kind in (("guest", "send"), ("host", "receive"))
    )
    assert len(received) == 14 and len(sent) == 14
    durations = [b - a for a, b in sent]
    assert durations == pytest.approx([b - a for a, b in received], abs=1e-4)
    assert min(durations) > 0.15, "two kilobytes on a line of 0.1 Mbps"
    # The clocks begin apart; the way takes as long each time.
    ways = [there[1] - here[1] for here, there in zip(sent, received, strict=True)]
    assert ways == pytest.approx([ways[0]] * len(ways), abs=1e-3)
    for events in found.values():
        assert all(b.keys() >= {"spans"} for b in events)


def test_a_party_never_does_two_things_at_once_and_its_time_is_accounted_for() -> None:
    for events in simulated(R=2, W=2).values():
        spans = [s for event in events for s in event["spans"] if s[0] in COMPUTING]
        assert {what for what, _, _ in spans} == COMPUTING
        assert all(a[2] <= b[1] + 1e-5 for a, b in pairwise(spans))
        waited = sum(b - a for what, a, b in spans if what == "wait")
        assert waited == pytest.approx(events[-1]["waited_s"], rel=0.02)
        told = sum(b - a for _, a, b in spans)
        assert told == pytest.approx(events[-1]["seconds"], rel=0.1)


def test_the_table_is_shown_as_it_is() -> None:
    events = simulated(R=3, W=4)["guest"]
    for event in events:
        rounds = [round_ for round_, _, _ in event["table"]]
        assert rounds == sorted(rounds) and set(rounds) <= set(
            range(event["round"] - 3, event["round"] + 1)
        )
        for _, uses, similarity in event["table"]:
            assert 1 <= uses <= 2, "an entry that was used three times has left"
            assert (similarity is None) == (uses == 1)
            assert similarity is None or -1.0001 <= similarity <= 1.0001
    assert 0.0 < events[-1]["staleness"] < 4.0


@pytest.mark.parametrize("method", [{"R": 1}, {"R": 2, "W": 65}])
def test_no_table_is_shown_where_there_is_none_or_it_is_large(method: dict[str, int]) -> None:
    assert not any("table" in event for event in simulated(**method)["host"])
