"""How every conversation between parties begins and ends, whatever it is for.

Each side says who it is, what it is here for and which contract it holds; whatever differs is
refused by name. At the end each says goodbye; one that stops early says why, as far as the peers
may know. What is agreed on, and what comes in between, is its callers' business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celu.errors import (
    CeluError,
    ContractMismatch,
    PeerFailed,
    PeerRestarted,
    ProtocolError,
)
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect

# What parties meet for, and the command that an operator starts it with.
PURPOSES = {"run": "celu run", "align": "celu align", "doctor": "celu doctor"}


def hello(name: str, purpose: str, contract: Mapping[str, Any], **more: Any) -> Message:
    """The first message: who we are, what for, and the contract we hold."""
    body = {"name": name, "purpose": purpose, "contract": dict(contract), **more}
    return Message(Kind.HELLO, body=body)


def meet(name: str, ours: Message, peer: str, theirs: Message) -> dict[str, Any]:
    """The body of a peer's HELLO, if it wants what we want; its contract may be another.

    Raises ProtocolError for a peer of another name, ContractMismatch for one that runs another
    command.
    """
    own, body = ours.body or {}, expect(theirs, Kind.HELLO).body or {}
    if body.get("name") != peer or not isinstance(body.get("contract"), dict):
        raise ProtocolError(f"expected {peer} to give its name and contract, got neither or other")
    if body.get("purpose") != own["purpose"]:
        raise ContractMismatch(
            f"{name} runs `{_command(own['purpose'])}`, {peer} runs "
            f"`{_command(body.get('purpose'))}`; run the same command at all parties"
        )
    return body


def differences(
    name: str, ours: Mapping[str, Any], peer: str, theirs: Mapping[str, Any]
) -> list[str]:
    """Every field in which two contracts differ, by name, with what each side has."""
    if ours == theirs:
        return []
    return [
        f"{_show(key)[1:-1]}: {name} has {_show(ours.get(key))}, "
        f"{peer} has {_show(theirs.get(key))}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def compare(name: str, ours: Message, peer: str, theirs: Message) -> dict[str, Any]:
    """The body of a peer's HELLO, if it wants what we want under the same contract.

    Raises what `meet` raises, and ContractMismatch for every field in which the contracts differ,
    by name.
    """
    body = meet(name, ours, peer, theirs)
    differing = differences(name, (ours.body or {})["contract"], peer, body["contract"])
    if differing:
        raise ContractMismatch(
            "the parties' contracts differ: " + "; ".join(differing[:10]) + ". "
            "Agree on one job.toml and on the same rows, and start again"
        )
    return body


async def close_session(links: Mapping[str, Link]) -> None:
    """End every link once both sides are done."""
    for link in links.values():
        await link.send(Message(Kind.GOODBYE))
    for link in links.values():
        expect(await link.receive(), Kind.GOODBYE)
        link.close()


async def tell(links: Mapping[str, Link], error: BaseException) -> None:
    """Let the peers know that we stop, and why, as far as they may know; never raises."""
    reason = "an unforeseen failure"
    if isinstance(error, CeluError):
        reason = error.public()
    elif isinstance(error, KeyboardInterrupt):
        reason = "interrupted by its operator"
    for link in links.values():
        if isinstance(error, PeerRestarted):  # we begin anew as well: it is to find that out
            link.close()
            continue
        # A peer that is gone, or that told us it stops, needs no telling.
        told = isinstance(error, PeerFailed) and str(error).startswith(f"{link.peer} stopped")
        if not told:
            with suppress(CeluError):  # it is gone, or the link has ended otherwise
                await link.send(Message(Kind.FAILURE, body={"reason": reason}))
        link.close()


def _command(purpose: object) -> str:
    # A peer's word is shown only where it is one we know.
    return PURPOSES.get(purpose, "something else") if isinstance(purpose, str) else "something else"


def _show(value: Any) -> str:
    return json.dumps(value)[:100]
