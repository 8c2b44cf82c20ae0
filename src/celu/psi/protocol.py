"""The rows that all parties have: a guest's exchange with every host, and what it makes of them.

Pairs of guest and host find their common rows (`exchange`), the guest keeps those that every host
has and tells each host which of theirs these are, and all compare a digest of what they kept. Like
a session, an alignment is a coroutine over open links, and tells its peers why it stops. Unlike
one it keeps its work in a folder while it runs, and goes on from there when it is started again.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from celu.data.tags import TAG_BYTES, Tags, commitment
from celu.errors import AlignmentError, DataError, ProtocolError
from celu.events import AlignmentProgress, Callback
from celu.handshake import close_session, compare, hello, tell
from celu.psi.exchange import AHEAD, LAG, Exchange, Rows, specs
from celu.psi.state import SECRET_BYTES, State
from celu.psi.workers import Workers
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect, require_rows
from celu.transport.wire import VERSION

CHUNK_ROWS = 2048
MAX_ROWS = 2**28  # a billion multiplications: a peer that claims more is mistaken
_NONCE = re.compile(f"[0-9a-f]{{{2 * SECRET_BYTES}}}")
_KEPT_BYTES = 64 * 1024  # of a bitmap, in one message


@dataclass(frozen=True)
class Work:
    """Where an alignment keeps what it needs to go on after a crash, and who multiplies for it.

    The folder holds one for each peer while an alignment runs, and is gone once it succeeded.
    """

    folder: Path
    workers: Workers
    chunk_rows: int = CHUNK_ROWS  # the same at all parties


@dataclass(frozen=True)
class Aligned:
    """The rows that all parties have, by number, ascending; so all hold them in the same order."""

    rows: Rows
    commitment: str  # of their tags, the same at all parties
    common: dict[str, int]  # rows that this party and the named one have, whatever others have
    sizes: dict[str, int]  # rows that the named party has in all


async def align_host(
    name: str, link: Link, tags: Tags, terms: Mapping[str, Any], work: Work, emit: Callback
) -> Aligned:
    """A host's part; `tags` are those of all its rows, ascending, and `terms` what all agree on.

    Raises what `align_guest` does.
    """
    links = {link.peer: link}
    exchanges: list[Exchange] = []
    try:
        exchanges = await _begin(name, links, tags, terms, work, guest=link.peer)
        await _exchange(exchanges, emit)
        rows = _common(exchanges[0])
        kept = rows[await _receive_kept(link, len(rows))]
        aligned = await _conclude(name, tags, kept, {link.peer: len(rows)}, exchanges)
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await _stop(links, exchanges, work, error)
        raise
    _discard(exchanges, work)
    return aligned


async def align_guest(
    name: str,
    links: Mapping[str, Link],
    tags: Tags,
    terms: Mapping[str, Any],
    work: Work,
    emit: Callback,
) -> Aligned:
    """The guest's part; `links` hold one for each host.

    Raises ContractMismatch where terms differ, ProtocolError for what a peer may not send,
    AlignmentError where the parties ended with different rows, DataError where none are common.
    After the last three the work is thrown away. After any other failure, starting again goes on
    where both had come to; where anything has changed since, both start over with fresh keys.
    """
    exchanges: list[Exchange] = []
    try:
        exchanges = await _begin(name, links, tags, terms, work, guest=name)
        await _exchange(exchanges, emit)
        found: dict[str, Rows] = {}
        for exchange in exchanges:
            found[exchange.link.peer] = _common(exchange)
            await _keep_waiting(exchanges)
        holders = np.zeros(len(tags), np.int32)
        for rows in found.values():
            holders[rows] += 1
        in_all = holders == len(links)
        for peer, rows in found.items():
            await _send_kept(links[peer], in_all[rows])
        common = {peer: len(rows) for peer, rows in found.items()}
        aligned = await _conclude(name, tags, np.flatnonzero(in_all), common, exchanges)
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await _stop(links, exchanges, work, error)
        raise
    _discard(exchanges, work)
    return aligned


async def _begin(
    name: str,
    links: Mapping[str, Link],
    tags: Tags,
    terms: Mapping[str, Any],
    work: Work,
    guest: str,
) -> list[Exchange]:
    """Agree on the terms, and with each peer on going on or starting over."""
    _check(name, tags)
    group = work.workers.group
    contract = {
        **terms,
        "protocol": VERSION,
        "psi.group": group.name,
        "psi.chunk_rows": work.chunk_rows,
        "psi.order": [LAG, AHEAD],
    }
    states, greetings = {}, {}
    for peer, link in links.items():
        made_for = _digest(name, peer, json.dumps(contract, sort_keys=True), tags.tobytes())
        states[peer] = State(work.folder / peer, made_for, len(tags), work.chunk_rows)
        greetings[peer] = hello(name, "align", contract, **_offer(states[peer], len(tags)))
        await link.send(greetings[peer])
    for peer, link in links.items():
        theirs = compare(name, greetings[peer], peer, await link.receive())
        _settle(states[peer], greetings[peer].body or {}, peer, theirs, work, name == guest)
        allowed = specs(work.chunk_rows, group.element_bytes)
        if name != guest:
            allowed[Kind.KEPT] = TensorSpec(_KEPT_BYTES, 1, torch.uint8)
        link.allow(allowed)  # before READY: what follows it may be a tensor
    for link in links.values():
        await link.send(Message(Kind.READY))
    for link in links.values():
        expect(await link.receive(), Kind.READY)
    return [Exchange(link, tags, states[peer], work.workers) for peer, link in links.items()]


def _check(name: str, tags: Tags) -> None:
    if not 0 < len(tags) <= MAX_ROWS:
        raise DataError(f"{name}: expected 1 to {MAX_ROWS} rows to align, got {len(tags)}")
    halves = np.ascontiguousarray(tags).view(">u8").reshape(-1, TAG_BYTES // 8)
    first, second = halves[:, 0], halves[:, 1]
    rises = first[1:] > first[:-1]
    rises |= (first[1:] == first[:-1]) & (second[1:] > second[:-1])
    if not rises.all():
        raise DataError(f"{name}: expected the tags of rows ascending, each once")


def _offer(state: State, num_rows: int) -> dict[str, Any]:
    """What a peer needs to know to go on, and the nonce for starting over."""
    saved = state.saved
    return {
        "rows": num_rows,
        "nonce": secrets.token_hex(SECRET_BYTES),
        "session": saved.session if saved else None,
        "own": state.own.count if saved else 0,
        "peers": state.peers.count if saved else 0,
    }


def _settle(
    state: State,
    ours: dict[str, Any],
    peer: str,
    theirs: dict[str, Any],
    work: Work,
    we_are_guest: bool,
) -> None:
    """Go on from the last chunks that both have, or start over with fresh keys."""
    rows = _count(theirs, "rows", 1, MAX_ROWS, peer)
    answered = _count(theirs, "peers", 0, MAX_ROWS, peer)
    held = _count(theirs, "own", 0, MAX_ROWS, peer)
    nonce = theirs.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ProtocolError(f"from {peer}: HELLO: expected a nonce of {SECRET_BYTES} bytes")
    saved = state.saved
    if saved and theirs.get("session") == saved.session and rows == saved.peer_rows:
        state.own.keep(min(state.own.count, answered))
        state.peers.keep(min(state.peers.count, held))
    else:
        guests, hosts = (ours, theirs) if we_are_guest else (theirs, ours)
        parts = [str(side[key]) for side in (guests, hosts) for key in ("name", "rows", "nonce")]
        state.begin(_digest(*parts), work.workers.group.new_key(), rows)


def _count(body: dict[str, Any], field: str, least: int, most: int, peer: str) -> int:
    value = body.get(field)
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"from {peer}: HELLO: expected {field} of {least} to {most}")
    return value


async def _exchange(exchanges: list[Exchange], emit: Callback) -> None:
    """A step with each peer in turn, until all are done."""
    total = sum(exchange.total for exchange in exchanges)
    for number in range(max((e.num_steps for e in exchanges), default=0)):
        for exchange in exchanges:
            if number < exchange.num_steps:
                await exchange.step(number)
            else:
                await _keep_waiting([exchange])
        emit(AlignmentProgress(done=sum(exchange.done for exchange in exchanges), total=total))


async def _keep_waiting(exchanges: list[Exchange]) -> None:
    """Let hosts know that we are at work with others, so that no wait reaches its deadline."""
    for exchange in exchanges:
        await exchange.link.send(Message(Kind.READY))


def _common(exchange: Exchange) -> Rows:
    rows = exchange.common()
    if len(rows) == 0:
        raise _nothing(f"none of our {exchange.state.own.num_rows} rows", exchange.link.peer)
    return rows


def _nothing(what: str, where: str) -> DataError:
    return DataError(
        f"{what} is at {where}. Check that all parties took the same column for the id, and write "
        "ids in the same way (letters, spaces, leading zeros)"
    )


async def _send_kept(link: Link, kept: npt.NDArray[np.bool_]) -> None:
    bits = torch.from_numpy(np.packbits(kept)).reshape(-1, 1)
    for part, start in enumerate(range(0, len(bits), _KEPT_BYTES)):
        await link.send(Message(Kind.KEPT, part, tensor=bits[start : start + _KEPT_BYTES]))


async def _receive_kept(link: Link, num_rows: int) -> npt.NDArray[np.bool_]:
    """Which of the rows that are common with the guest all hosts have."""
    message = await link.receive()
    while message.kind is Kind.READY:  # the guest is not done with other hosts
        message = await link.receive()
    num_bytes = -(-num_rows // 8)
    parts = []
    for part, start in enumerate(range(0, num_bytes, _KEPT_BYTES)):
        message = message if part == 0 else await link.receive()
        size = min(_KEPT_BYTES, num_bytes - start)
        parts.append(require_rows(expect(message, Kind.KEPT, part), size).numpy().reshape(-1))
    bits = np.unpackbits(np.concatenate(parts)).astype(np.bool_)
    if bits[num_rows:].any():
        raise ProtocolError(f"from {link.peer}: KEPT: expected a bit for each common row, got more")
    return bits[:num_rows]


async def _conclude(
    name: str, tags: Tags, rows: Rows, common: dict[str, int], exchanges: list[Exchange]
) -> Aligned:
    """Make sure that every peer holds the same rows."""
    if len(rows) == 0:
        raise _nothing("no row", "all parties")
    digest = commitment(tags[rows])
    for exchange in exchanges:
        proof = _proof(exchange, name, digest)
        body = {"rows": len(rows), "commitment": proof}
        await exchange.link.send(Message(Kind.ALIGNED, body=body))
    for exchange in exchanges:
        peer = exchange.link.peer
        theirs = expect(await exchange.link.receive(), Kind.ALIGNED).body or {}
        expected = {"rows": len(rows), "commitment": _proof(exchange, peer, digest)}
        if theirs != expected:
            raise AlignmentError(
                f"{name} and {peer} ended with different rows ({len(rows)} at {name}); "
                "start again, with the same release of celu at all parties"
            )
    sizes = {exchange.link.peer: exchange.state.peers.num_rows for exchange in exchanges}
    return Aligned(rows, digest, common, sizes)


def _proof(exchange: Exchange, name: str, digest: str) -> str:
    """What only one who knows the rows can say, and nobody can repeat as his own."""
    return _digest(exchange.session.hex(), name, digest)


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=SECRET_BYTES, person=b"celu.psi")
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()


async def _stop(
    links: Mapping[str, Link], exchanges: list[Exchange], work: Work, error: BaseException
) -> None:
    """Tell the peers; keep the work unless it led to this error and would again."""
    await tell(links, error)
    if isinstance(error, (ProtocolError, AlignmentError, DataError)):
        _discard(exchanges, work)


def _discard(exchanges: list[Exchange], work: Work) -> None:
    for exchange in exchanges:
        exchange.state.discard()
    with suppress(OSError):  # never made, or not ours alone
        work.folder.rmdir()
