"""The session of `celu doctor`: compare contracts and versions, and measure the links.

Like a training session it is a coroutine over open links and reports its failure to the peers.
Contracts that differ do not stop it: the differences are part of its findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celu.config.job import Job
from celu.doctor.measure import Log, ProbePlan, answer, measure
from celu.doctor.measurement import Measurement
from celu.doctor.probes import MAX_GUEST_S, MAX_HOST_S, SPECS, Clocks, Prober
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
_MAX_DIFFERING = 100  # fields that are reported; a peer may send thousands


@dataclass(frozen=True)
class Diagnosis:
    """The measurement of the link to a peer, and the peer's versions and contract."""

    peer: str
    measured: Measurement
    versions: dict[str, str]  # the peer's
    differing: list[str]  # fields of the contract, with what each side has


def own_versions() -> dict[str, str]:
    """The versions that parties compare."""
    found = {**versions(), "protocol": str(VERSION)}
    return {name: found[name] for name in _COMPARED}


async def diagnose_hosts(
    name: str, job: Job, links: Mapping[str, Link], plan: ProbePlan, clocks: Clocks, log: Log
) -> dict[str, Diagnosis]:
    """The guest's side: measure one host after the other. Raises the errors of the links."""
    links = {host: links[host] for host in job.hosts}  # in the contract's order
    open_links, waiting = dict(links), dict(links)
    try:
        peers = await _handshake(name, job, links)
        diagnoses = {}

        async def send_still_working() -> None:
            for link in waiting.values():
                await link.send(Message(Kind.READY))

        for peer, link in links.items():
            del waiting[peer]
            measured = await measure(
                Prober(link, clocks, MAX_HOST_S), plan, log, send_still_working
            )
            diagnoses[peer] = Diagnosis(peer, measured, *peers[peer])
            await close_session({peer: link})
            del open_links[peer]
    except (Exception, KeyboardInterrupt) as error:
        await report_failure(open_links, error)
        raise
    return diagnoses


async def diagnose_guest(
    name: str, job: Job, link: Link, clocks: Clocks, log: Log
) -> dict[str, Diagnosis]:
    """A host's side: answer the guest's probes. Raises the errors of the link."""
    links = {link.peer: link}
    try:
        peers = await _handshake(name, job, links)
        log(f"{link.peer} measures the link")
        measured = await answer(Prober(link, clocks, MAX_GUEST_S))
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await report_failure(links, error)
        raise
    return {link.peer: Diagnosis(link.peer, measured, *peers[link.peer])}


async def _handshake(
    name: str, job: Job, links: Mapping[str, Link]
) -> dict[str, tuple[dict[str, str], list[str]]]:
    """Each peer's versions, and the fields in which its contract differs from ours."""
    ours = job.contract()
    hello = make_hello(name, "doctor", ours, versions=own_versions())
    peers = {}
    for link in links.values():
        await link.send(hello)
    for peer, link in links.items():
        body = check_peer(name, hello, peer, await link.receive())
        differing = contract_differences(name, ours, peer, body["contract"])[:_MAX_DIFFERING]
        peers[peer] = _read_versions(peer, body.get("versions")), differing
        link.allow(SPECS)  # before READY: tensors may follow it
    for link in links.values():
        await link.send(Message(Kind.READY))
    for link in links.values():
        expect(await link.receive(), Kind.READY)
    return peers


def _read_versions(peer: str, claimed: Any) -> dict[str, str]:
    if not isinstance(claimed, dict):
        raise ProtocolError(f"HELLO from {peer}: expected versions, got none")
    found = {name: claimed.get(name) for name in _COMPARED}
    for name, value in found.items():
        if not isinstance(value, str) or not value.isprintable() or len(value) > 40:
            raise ProtocolError(
                f"HELLO from {peer}: versions: expected the version of {name}, at most 40 letters"
            )
    return {name: str(value) for name, value in found.items()}
