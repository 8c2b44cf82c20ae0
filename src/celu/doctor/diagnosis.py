"""An examination of links: parties check_peer, compare what they hold, measure, and part.

Like a session it is a coroutine over links that are open, and tells its peers why it stops. Unlike
one it goes on under contracts that differ: what differs is part of what it finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celu.config.job import Job
from celu.doctor.measure import ProbePlan, Say, answer, measure
from celu.doctor.measurement import Measured
from celu.doctor.probes import SPECS, End, Watch
from celu.errors import ProtocolError
from celu.handshake import (
    check_peer,
    close_session,
    contract_differences,
    make_hello,
    report_failure,
)
from celu.run_folder import versions
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect
from celu.transport.wire import VERSION

_COMPARED = ("celu", "python", "torch", "protocol")
_MAX_DIFFERING = 100  # fields named; a peer may send thousands


@dataclass(frozen=True)
class Diagnosis:
    """What a party knows of a peer and of the link to it."""

    peer: str
    measured: Measured
    versions: dict[str, str]  # the peer's
    differing: list[str]  # fields of the contract, with what each side has


def own_versions() -> dict[str, str]:
    """The versions that parties compare."""
    found = {**versions(), "protocol": str(VERSION)}
    return {name: found[name] for name in _COMPARED}


async def diagnose_hosts(
    name: str, job: Job, links: Mapping[str, Link], plan: ProbePlan, watch: Watch, say: Say
) -> dict[str, Diagnosis]:
    """The guest's part: measure one host after the other. Raises what goes wrong on a link."""
    links = {host: links[host] for host in job.hosts}  # in the contract's order
    present, waiting = dict(links), dict(links)
    try:
        met = await _meet(name, job, links)
        found = {}

        async def still_here() -> None:
            for link in waiting.values():
                await link.send(Message(Kind.READY))

        for peer, link in links.items():
            del waiting[peer]
            measured = await measure(End(link, watch), plan, say, still_here)
            found[peer] = Diagnosis(peer, measured, *met[peer])
            await close_session({peer: link})
            del present[peer]
    except (Exception, KeyboardInterrupt) as error:
        await report_failure(present, error)
        raise
    return found


async def diagnose_guest(
    name: str, job: Job, link: Link, watch: Watch, say: Say
) -> dict[str, Diagnosis]:
    """A host's part: answer what the guest measures. Raises what goes wrong on the link."""
    links = {link.peer: link}
    try:
        met = await _meet(name, job, links)
        say(f"{link.peer} measures the link")
        measured = await answer(End(link, watch))
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await report_failure(links, error)
        raise
    return {link.peer: Diagnosis(link.peer, measured, *met[link.peer])}


async def _meet(
    name: str, job: Job, links: Mapping[str, Link]
) -> dict[str, tuple[dict[str, str], list[str]]]:
    """Each peer's versions, and the fields in which its contract differs from ours."""
    ours = job.contract()
    greeting = make_hello(name, "doctor", ours, versions=own_versions())
    met = {}
    for link in links.values():
        await link.send(greeting)
    for peer, link in links.items():
        body = check_peer(name, greeting, peer, await link.receive())
        differing = contract_differences(name, ours, peer, body["contract"])[:_MAX_DIFFERING]
        met[peer] = _versions(body.get("versions")), differing
        link.allow(SPECS)  # before READY: what follows it may be a tensor
    for link in links.values():
        await link.send(Message(Kind.READY))
    for link in links.values():
        expect(await link.receive(), Kind.READY)
    return met


def _versions(claimed: Any) -> dict[str, str]:
    if not isinstance(claimed, dict):
        raise ProtocolError("HELLO: expected versions, got none")
    found = {name: claimed.get(name) for name in _COMPARED}
    for name, value in found.items():
        if not isinstance(value, str) or not value.isprintable() or len(value) > 40:
            raise ProtocolError(f"HELLO: versions: expected one of {name} in at most 40 letters")
    return {name: str(value) for name, value in found.items()}
