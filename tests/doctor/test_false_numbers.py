"""A peer's numbers are validated: impossible ones are named and refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from celu.doctor.diagnosis import diagnose_guest
from celu.doctor.probes import Clocks
from celu.errors import ProtocolError, ShapeError
from celu.transport.emulation import LinkEmulator
from celu.transport.link import Link
from celu.transport.memory import memory_links, run_together
from celu.transport.message import Kind, Message
from doctor.setups import Setup, make_job
from psi.parties import Wrapped

IMPOSSIBLE = [-0.5, math.nan, math.inf, 1e300, 10**400, "soon", None, True, [1.0]]


def tampering(change: Callable[[Message], Message]) -> Callable[[Link], Link]:
    return lambda link: Wrapped(link, change)


def with_body(key: str, value: Any, where: str | None = None) -> Callable[[Message], Message]:
    """Change a field of every message that has it, inside an object if `where` is given."""

    def change(message: Message) -> Message:
        body = message.body or {}
        if message.kind is not Kind.FINDINGS:
            return message
        inner = body.get(where or "")
        if isinstance(inner, dict):
            return replace(message, body={**body, where: {**inner, key: value}})
        return replace(message, body={**body, key: value}) if key in body else message

    return change


def setup(**odd: Any) -> Setup:
    return Setup(make_job(), lambda: (LinkEmulator(100, 0.01), LinkEmulator(100, 0.01)), **odd)


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize("key", ["at", "span_s", "elapsed_s"])
def test_a_host_cannot_report_impossible_times(key: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=f"FINDINGS: {key}: expected a number"):
        setup(wrap_host=tampering(with_body(key, value))).diagnose()


@pytest.mark.parametrize("value", [0.0, 100.0])
def test_a_host_cannot_report_a_probe_that_arrived_too_early_or_too_late(
    value: float,
) -> None:
    with pytest.raises(ProtocolError, match="span_s"):
        setup(wrap_host=tampering(with_body("span_s", value))).diagnose()


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize(
    ("key", "where"),
    [("rtt_min_s", None), ("jitter_s", None), ("mbps", "to_host"), ("parcel_bytes", "to_guest")],
)
def test_a_guest_cannot_report_impossible_results(key: str, where: str | None, value: Any) -> None:
    with pytest.raises(ProtocolError, match=f"FINDINGS: {key}: expected"):
        setup(wrap=tampering(with_body(key, value, where))).diagnose()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("messages", 10**9),
        ("messages", 1),
        ("messages", 2.5),
        ("to_host", 2 << 20),
        ("to_guest", 0),
        ("rest_s", 1e6),
        ("rest_s", math.nan),
        ("way", "up"),
        ("way", ["both"]),
        ("do", "dance"),
    ],
)
def test_a_guest_cannot_request_more_than_is_allowed(key: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=f"FINDINGS: {key}: expected"):
        setup(wrap=tampering(with_body(key, value))).diagnose()


def test_a_probe_of_another_size_than_requested_is_refused() -> None:
    def shorten(message: Message) -> Message:
        if message.kind is Kind.PROBE and message.part == 3 and message.tensor is not None:
            return replace(message, tensor=message.tensor[:-1])
        return message

    with pytest.raises(ShapeError, match="PROBE of round 1 from guest: expected 4096 rows"):
        setup(wrap=tampering(shorten)).diagnose()


def test_a_probe_larger_than_allowed_is_refused() -> None:
    big = torch.zeros((1 << 20) + 1, 1, dtype=torch.uint8)

    def grow(message: Message) -> Message:
        return replace(message, tensor=big) if message.kind is Kind.PROBE else message

    with pytest.raises(ShapeError, match="PROBE: expected"):
        setup(wrap=tampering(grow)).diagnose()


@pytest.mark.parametrize("claim", [None, {}, {"celu": 3}, {"celu": "x" * 50}, {"celu": "\x1b[2J"}])
def test_malformed_versions_are_refused(claim: Any) -> None:
    def change(message: Message) -> Message:
        if message.kind is Kind.HELLO:
            return replace(message, body={**(message.body or {}), "versions": claim})
        return message

    with pytest.raises(ProtocolError, match=r"HELLO from host: .*expected"):
        setup(wrap_host=tampering(change)).diagnose()


def test_a_measurement_that_never_ends_is_refused() -> None:
    to_host, to_guest = memory_links("guest", "host")

    async def guest() -> None:
        body = (await to_host.receive()).body or {}
        await to_host.send(Message(Kind.HELLO, body={**body, "name": "guest"}))
        while True:
            await to_host.send(Message(Kind.READY))

    host = diagnose_guest("host", make_job(), to_guest, Clocks(), lambda text: None)
    with pytest.raises(ProtocolError, match="the measurement did not end"):
        run_together({"host": host, "guest": guest()}, [to_host, to_guest])  # type: ignore[dict-item]
