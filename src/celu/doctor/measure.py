"""The measuring of a link: the guest leads, the host answers, one step after the other.

Pings give latency and the difference of the clocks; trains give bandwidth. A train grows until it
is long enough, so that a slow line takes seconds and a fast one is filled. Nothing here judges
what comes out.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import torch

from celu.doctor.measurement import MAX_WALL_S, Measured, Way, number, read_measured
from celu.doctor.probes import End, Probe
from celu.errors import ProtocolError
from celu.transport.message import Kind, Message, expect

_FIRST_BYTES = 64 * 1024
_GROWTH = 4
_MAX_STEPS = 10_000  # of a peer that never comes to an end
_PARCEL_S = 0.1
_PARCEL_BYTES = (16 * 1024, 4 * 1024 * 1024)
_PING = torch.zeros(1, 1, dtype=torch.uint8)
Say = Callable[[str], None]


@dataclass(frozen=True)
class ProbePlan:
    """How much is measured; the guest's counts."""

    pings: int = 20
    bulk_s: float = 2.0
    max_bytes: int = 256 * 1024 * 1024
    rest_s: float = 1.5


async def measure(
    end: End, plan: ProbePlan, say: Say, between: Callable[[], Awaitable[None]]
) -> Measured:
    """The guest's part; `between` is awaited after each step, so that others know we are busy.

    Raises ProtocolError for what cannot be, and what the link raises.
    """
    peer = end.link.peer
    numbers = iter(range(1, _MAX_STEPS))

    async def run(train: Probe) -> tuple[float, float]:
        await end.link.send(train.order())
        done = await _take_part(end, train, "to_host")
        await between()
        return done

    async def bandwidth(way: str) -> float:
        total = float(_FIRST_BYTES)
        while True:
            train = Probe.of(next(numbers), way, total)
            span_s, _ = await run(train)
            mbps = train.mbps(way, span_s)
            if span_s >= plan.bulk_s / 2 or total >= plan.max_bytes:
                return mbps
            wanted = max(2 * total, mbps * 1e6 / 8 * plan.bulk_s)
            total = min(plan.max_bytes, _GROWTH * total, wanted)

    async def one_way(way: str) -> tuple[float, int, float, float]:
        say(f"bandwidth {'to' if way == 'to_host' else 'from'} {peer}")
        mbps = await bandwidth(way)
        low, high = _PARCEL_BYTES
        parcel = Probe.of(next(numbers), way, min(high, max(low, mbps * 1e6 / 8 * _PARCEL_S)))
        _, parcel_s = await run(parcel)  # at once: the line is warm from the train before
        rested = Probe.of(next(numbers), way, parcel.messages * parcel.to_host, plan.rest_s)
        _, rested_s = await run(rested)
        return mbps, parcel.messages * parcel.to_host, parcel_s, rested_s

    say(f"latency to {peer}")
    rtts, clocks = await _ping(end, plan.pings)
    await between()
    to_host, to_guest = await one_way("to_host"), await one_way("to_guest")
    say(f"bandwidth to and from {peer} at once")
    totals = (min(plan.max_bytes, w[0] * 1e6 / 8 * plan.bulk_s) for w in (to_host, to_guest))
    train = Probe.both(next(numbers), *totals)
    sent_s, received_s = await run(train)
    quickest = min(range(len(rtts)), key=rtts.__getitem__)
    measured = Measured(
        rtt_min_s=rtts[quickest],
        rtt_median_s=statistics.median(rtts),
        jitter_s=statistics.fmean(abs(a - b) for a, b in itertools.pairwise(rtts)),
        clock_s=clocks[quickest],
        clock_error_s=rtts[quickest] / 2,
        to_host=Way(to_host[0], train.mbps("to_host", sent_s), *to_host[1:]),
        to_guest=Way(to_guest[0], train.mbps("to_guest", received_s), *to_guest[1:]),
    )
    await end.link.send(Message(Kind.FINDINGS, body={"do": "end", **measured.body()}))
    return measured


async def answer(end: End) -> Measured:
    """A host's part: do what the guest asks for, until it says what came out.

    Raises ProtocolError for what the guest may not ask or claim, and what the link raises.
    """
    for _ in range(_MAX_STEPS):
        message = await end.link.receive()
        if message.kind is Kind.READY:  # the guest is busy with another host
            continue
        if message.kind is Kind.PROBE:
            at = end.watch.wall()
            await end.link.send(Message(Kind.FINDINGS, message.round, body={"at": at}))
            continue
        body = expect(message, Kind.FINDINGS, message.round).body or {}
        if body.get("do") == "end":
            return read_measured(body)
        if body.get("do") != "train":
            raise ProtocolError("FINDINGS: do: expected something to measure, or the end")
        await _take_part(end, Probe.read(message), "to_guest")
    raise ProtocolError(f"expected an end of the measuring within {_MAX_STEPS} steps, got none")


async def _take_part(end: End, train: Probe, ours: str) -> tuple[float, float]:
    """Our part in a train; `ours` is the way that we send."""
    sending, receiving = train.to_host, train.to_guest
    if ours == "to_guest":
        sending, receiving = receiving, sending
    if train.way == "both":
        return await end.exchange(train, sending, receiving)
    return await (end.send(train, sending) if train.way == ours else end.receive(train, receiving))


async def _ping(end: End, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each trip there and back, and what the host's clock showed more half-way."""
    rtts, clocks = [], []
    for ping in range(count + 1):
        wall, started = end.watch.wall(), end.watch.clock()
        await end.link.send(Message(Kind.PROBE, ping, tensor=_PING))
        message = expect(await end.link.receive(), Kind.FINDINGS, ping)
        rtt_s = end.watch.clock() - started
        at = number(message.body or {}, "at", 0.0, MAX_WALL_S)
        if ping > 0:  # the first one pays for what is set up on its way
            rtts.append(rtt_s)
            clocks.append(at - wall - rtt_s / 2)
    return rtts, clocks
