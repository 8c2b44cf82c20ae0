"""How every session between parties starts and ends: `celu run`, `align`, `predict` alike.

Each side sends its name, its purpose and its contract. If the contracts differ, the session is
refused and the error names the fields. At the end each side sends GOODBYE; a party that stops early
sends the reason, without private details.
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
    RankLost,
)
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect

# The purpose of a session, and the command that starts it.
PURPOSES = {
    purpose: f"celu {purpose}" for purpose in ("run", "align", "doctor", "predict", "serve")
}


def make_hello(name: str, purpose: str, contract: Mapping[str, Any], **more: Any) -> Message:
    """The first message of a session: our name, purpose and contract."""
    body = {"name": name, "purpose": purpose, "contract": dict(contract), **more}
    return Message(Kind.HELLO, body=body)


def check_peer(name: str, ours: Message, peer: str, theirs: Message) -> dict[str, Any]:
    """The body of a peer's HELLO, whose contract may differ from ours.

    Raises ProtocolError if the peer's name is not the expected one, ContractMismatch if it runs
    another command.
    """
    own, body = ours.body or {}, expect(theirs, Kind.HELLO).body or {}
    if body.get("name") != peer or not isinstance(body.get("contract"), dict):
        raise ProtocolError(f"expected HELLO with the name {peer} and a contract, got another")
    if body.get("purpose") != own["purpose"]:
        raise ContractMismatch(
            f"{name} runs `{_command(own['purpose'])}`, {peer} runs "
            f"`{_command(body.get('purpose'))}`; run the same command at all parties",
            peer=peer,
        )
    return body


def contract_differences(
    name: str, ours: Mapping[str, Any], peer: str, theirs: Mapping[str, Any]
) -> list[str]:
    """Every field in which two contracts differ, with both values."""
    if ours == theirs:
        return []
    return [
        f"{_show(key)[1:-1]}: {name} has {_show(ours.get(key))}, "
        f"{peer} has {_show(theirs.get(key))}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def check_contract(
    name: str, ours: Message, peer: str, theirs: Message, file: str = "job.toml"
) -> dict[str, Any]:
    """The body of a peer's HELLO, whose contract, from `file`, must equal ours.

    Raises what `check_peer` raises, and ContractMismatch with the fields in which the contracts
    differ.
    """
    body = check_peer(name, ours, peer, theirs)
    differing = contract_differences(name, (ours.body or {})["contract"], peer, body["contract"])
    if differing:
        advice = f"Use the same {file} at all parties, and start again"
        if any(field.startswith("split.") for field in differing):
            advice = (
                "Use the same [split] in schema.toml at all parties, prepare the store again where "
                'it changed ("celu prepare"), and align again'
            )
        if any(field.startswith("psi.shard:") for field in differing):
            advice = "Start the same shard at all parties: celu align with the same --shard I/K"
        if any(field.startswith("model:") for field in differing):
            advice = 'Use the parts of one model: run "celu export" on the same run at all parties'
        if any(field.startswith("total_rounds:") for field in differing):
            advice = (
                "Pass the same --more at all parties; if a party's run was interrupted, finish it "
                "without --more first"
            )
        if any(field.startswith("start_model:") for field in differing):
            advice = (
                "Start from parts of one model: set start in every party.toml to the folder of "
                "the same run, or in none"
            )
        if any(field.startswith(("train_", "validation_", "test_")) for field in differing):
            advice = (
                "The parties have different rows, or the same rows in other parts or another "
                'order: run "celu align" at all parties; or, for "aligned = true" in party.toml, '
                "prepare all stores from rows with the same ids, with the same [split] in "
                "schema.toml (seed, test, validation); or, in Python, pass each Dataset with the "
                "same ids and seed, in the same order"
            )
        raise ContractMismatch(
            f"the parties' contracts differ: {'; '.join(differing[:10])}. {advice}", peer=peer
        )
    return body


async def close_session(links: Mapping[str, Link]) -> None:
    """Close every link after both sides have sent GOODBYE."""
    for link in links.values():
        await link.send(Message(Kind.GOODBYE))
    for link in links.values():
        expect(await link.receive(), Kind.GOODBYE)
        link.close()


async def report_failure(links: Mapping[str, Link], error: BaseException) -> None:
    """Send the peers the public reason why we stop, and close the links; never raises."""
    for link in links.values():
        reason = "an unexpected error"
        if isinstance(error, CeluError):
            reason = error.public_to(link.peer)
        elif isinstance(error, KeyboardInterrupt):
            reason = "interrupted by its operator"
        # We restart too: the others notice when we reconnect.
        if isinstance(error, PeerRestarted | RankLost):
            link.close()
            continue
        # A peer that itself reported a failure needs no report.
        stopped = isinstance(error, PeerFailed) and str(error).startswith(f"{link.peer} stopped")
        if not stopped:
            with suppress(CeluError):  # the peer is gone, or the link has ended
                await link.send(Message(Kind.FAILURE, body={"reason": reason}))
        link.close()


def _command(purpose: object) -> str:
    # Only known commands are shown: the text comes from a peer.
    return PURPOSES.get(purpose, "something else") if isinstance(purpose, str) else "something else"


def _show(value: Any) -> str:
    return json.dumps(value)[:100]
