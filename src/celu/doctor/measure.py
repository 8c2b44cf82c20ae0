"""Measure a link: the guest leads and the host answers, one step at a time.

Pings give latency and the difference of the clocks; probes give bandwidth. Probes grow until one
takes long enough, so that a slow link takes seconds and a fast one is saturated. Nothing here
judges the results.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import torch

from celu.doctor.measurement import (
    MAX_WALL_S,
    Direction,
    Measurement,
    read_measurement,
)
from celu.doctor.probes import Probe, Prober
from celu.errors import ProtocolError
from celu.transport.message import Kind, Message, expect

_FIRST_BYTES = 64 * 1024
_GROWTH = 4
_MAX_STEPS = 10_000  # in case the peer never ends the measurement
_BURST_S = 0.1
_BURST_BYTES = (16 * 1024, 4 * 1024 * 1024)
_PING = torch.zeros(1, 1, dtype=torch.uint8)
Log = Callable[[str], None]


@dataclass(frozen=True)
class ProbePlan:
    """How much to measure; the guest's plan is used."""

    pings: int = 20
    bulk_s: float = 2.0
    max_bytes: int = 256 * 1024 * 1024
    pause_s: float = 1.5


async def measure(
    prober: Prober, plan: ProbePlan, log: Log, after_step: Callable[[], Awaitable[None]]
) -> Measurement:
    """The guest's side; `after_step` is awaited after each step: waiting hosts need a message.

    Raises ProtocolError for an impossible number, and the errors of the link.
    """
    peer = prober.peer
    numbers = iter(range(1, _MAX_STEPS))

    async def run(probe: Probe) -> tuple[float, float]:
        await prober.send_message(probe.to_message())
        times = await _run_probe(prober, probe, "to_host")
        await after_step()
        return times

    async def bandwidth(direction: str) -> float:
        total = float(_FIRST_BYTES)
        while True:
            probe = Probe.one_way(next(numbers), direction, total)
            span_s, _ = await run(probe)
            mbps = probe.mbps(direction, span_s)
            if span_s >= plan.bulk_s / 2 or total >= plan.max_bytes:
                return mbps
            wanted = max(2 * total, mbps * 1e6 / 8 * plan.bulk_s)
            total = min(plan.max_bytes, _GROWTH * total, wanted)

    async def one_way(direction: str) -> tuple[float, int, float, float]:
        log(f"bandwidth {'to' if direction == 'to_host' else 'from'} {peer}")
        mbps = await bandwidth(direction)
        low, high = _BURST_BYTES
        total = min(high, max(low, mbps * 1e6 / 8 * _BURST_S))
        burst = Probe.one_way(next(numbers), direction, total)
        burst_bytes = burst.num_messages * burst.to_host
        _, burst_s = await run(burst)  # right after other probes: TCP has ramped up
        idle_burst = Probe.one_way(next(numbers), direction, burst_bytes, plan.pause_s)
        _, idle_burst_s = await run(idle_burst)
        return mbps, burst_bytes, burst_s, idle_burst_s

    log(f"latency to {peer}")
    rtts, clocks = await _ping(prober, plan.pings)
    await after_step()
    to_host, to_guest = await one_way("to_host"), await one_way("to_guest")
    log(f"bandwidth to and from {peer} at once")
    totals = (min(plan.max_bytes, d[0] * 1e6 / 8 * plan.bulk_s) for d in (to_host, to_guest))
    probe = Probe.both_ways(next(numbers), *totals)
    sent_s, received_s = await run(probe)
    fastest = min(range(len(rtts)), key=rtts.__getitem__)
    measured = Measurement(
        rtt_min_s=rtts[fastest],
        rtt_median_s=statistics.median(rtts),
        jitter_s=statistics.fmean(abs(a - b) for a, b in itertools.pairwise(rtts)),
        clock_s=clocks[fastest],
        clock_error_s=rtts[fastest] / 2,
        to_host=Direction(to_host[0], probe.mbps("to_host", sent_s), *to_host[1:]),
        to_guest=Direction(to_guest[0], probe.mbps("to_guest", received_s), *to_guest[1:]),
    )
    await prober.send_message(Message(Kind.FINDINGS, body={"do": "end", **measured.to_body()}))
    return measured


async def answer(prober: Prober) -> Measurement:
    """The host's side: run the probes that the guest requests, until it sends the results.

    Raises ProtocolError for an invalid request or result, and the errors of the link.
    """
    for _ in range(_MAX_STEPS):
        message = await prober.receive_message()
        if message.kind is Kind.READY:  # the guest is busy with another host
            continue
        if message.kind is Kind.PROBE:
            at = prober.clocks.wall()
            await prober.send_message(Message(Kind.FINDINGS, message.round, body={"at": at}))
            continue
        body = expect(message, Kind.FINDINGS, message.round).body or {}
        if body.get("do") == "end":
            return read_measurement(body)
        if body.get("do") != "train":
            raise ProtocolError("FINDINGS: do: expected a probe or the end")
        await _run_probe(prober, Probe.from_message(message), "to_guest")
    raise ProtocolError(f"the measurement did not end within {_MAX_STEPS} steps")


async def _run_probe(prober: Prober, probe: Probe, ours: str) -> tuple[float, float]:
    """Our side of a probe; `ours` is the direction in which we send."""
    sending, receiving = probe.to_host, probe.to_guest
    if ours == "to_guest":
        sending, receiving = receiving, sending
    if probe.direction == "both":
        return await prober.exchange(probe, sending, receiving)
    if probe.direction == ours:
        return await prober.send(probe, sending)
    return await prober.receive(probe, receiving)


async def _ping(prober: Prober, count: int) -> tuple[list[float], list[float]]:
    """The round-trip times, and the difference of the clocks in each."""
    rtts, clocks = [], []
    for ping in range(count + 1):
        # The time of day second: a preemption in between then stays within the stated error.
        started = prober.clocks.clock()
        wall = prober.clocks.wall()
        await prober.send_message(Message(Kind.PROBE, ping, tensor=_PING))
        message = expect(await prober.receive_message(), Kind.FINDINGS, ping)
        rtt_s = prober.clocks.clock() - started
        at = prober.read_number(message, "at", 0.0, MAX_WALL_S)
        if ping > 0:  # the first one is slower: connections are set up
            rtts.append(rtt_s)
            clocks.append(at - wall - rtt_s / 2)
    return rtts, clocks
