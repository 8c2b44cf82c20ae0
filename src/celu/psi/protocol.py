"""Alignment: find the rows that all parties have, by set intersections between guest and hosts.

The guest and each host find their common rows (`exchange`); the guest selects those that every host
has and sends each host the selection; then all compare a digest of the selected rows. Like a
training session, an alignment is a coroutine over open links and reports its failure to the peers.
It stores its progress in a folder, and resumes from there when it is started again.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from celu.data.shards import Shard
from celu.data.tags import TAG_BYTES, Tags, commitment
from celu.errors import AlignmentError, DataError, ProtocolError
from celu.events import AlignmentProgress, Callback
from celu.handshake import check_contract, close_session, make_hello, report_failure
from celu.psi.exchange import AHEAD, LAG, Exchange, RowNumbers, specs
from celu.psi.selection import (
    MAX_ROWS,
    max_ready,
    receive_selection,
    selection_spec,
    send_selection,
)
from celu.psi.state import SECRET_BYTES, ExchangeState
from celu.psi.workers import Workers
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect
from celu.transport.wire import VERSION

CHUNK_ROWS = 2048
_NONCE = re.compile(f"[0-9a-f]{{{2 * SECRET_BYTES}}}")


@dataclass(frozen=True)
class AlignmentResources:
    """The folder in which an alignment stores its progress, and its worker processes.

    The folder has a subfolder for each peer while an alignment runs, and is removed on success.
    After a violation, the number of ids that were answered stays.
    """

    folder: Path
    workers: Workers
    chunk_rows: int = CHUNK_ROWS  # the same at all parties
    shard: Shard | None = None  # the tags are those of one shard
    total: int = 0  # with a shard, our rows in all shards

    def num_elements(self, tags: Tags) -> int:
        """How many elements we send: a shard is padded with dummies, so its size tells nothing."""
        return len(tags) if self.shard is None else self.shard.padded_rows(self.total)


@dataclass(frozen=True)
class AlignmentResult:
    """The rows that all parties have, by number, ascending: the same order at all parties."""

    rows: RowNumbers
    commitment: str  # of their tags, the same at all parties
    common: dict[str, int]  # number of rows in common with each peer
    peer_rows: dict[str, int]  # number of rows of each peer, in all shards
    answered: dict[str, int]  # number of ids of each peer that were answered, over all attempts


async def align_host(
    name: str,
    link: Link,
    tags: Tags,
    terms: Mapping[str, Any],
    resources: AlignmentResources,
    emit: Callback,
) -> AlignmentResult:
    """The host's side; `tags` are those of all its rows, ascending, `terms` equal at all parties.

    Raises the same errors as `align_guest`.
    """
    links = {link.peer: link}
    async with _exchanges(name, links, tags, terms, resources, emit, guest=link.peer) as exchanges:
        rows = _common_rows(exchanges[0], resources)
        ready_limit = max_ready(resources.chunk_rows)
        selected = rows[await receive_selection(link, len(rows), ready_limit)]
        common = {link.peer: len(rows)}
        return await _confirm(name, tags, selected, common, exchanges, resources)


async def align_guest(
    name: str,
    links: Mapping[str, Link],
    tags: Tags,
    terms: Mapping[str, Any],
    resources: AlignmentResources,
    emit: Callback,
) -> AlignmentResult:
    """The guest's side; `links` has one link for each host.

    Raises ContractMismatch if terms differ, ProtocolError if a peer violates the protocol,
    AlignmentError if the parties end with different rows, DataError if there are no common rows.
    After the last three the progress is discarded, except for the number of answered ids. After any
    other failure, a new start resumes from the last common progress; if rows or terms have changed,
    it starts over with fresh keys.
    """
    async with _exchanges(name, links, tags, terms, resources, emit, guest=name) as exchanges:
        found: dict[str, RowNumbers] = {}
        for exchange in exchanges:
            found[exchange.link.peer] = _common_rows(exchange, resources)
            await _send_still_working(exchanges)
        num_hosts = np.zeros(len(tags), np.int32)
        for rows in found.values():
            num_hosts[rows] += 1
        in_all = num_hosts == len(links)
        for peer, rows in found.items():
            await send_selection(links[peer], in_all[rows])
        common = {peer: len(rows) for peer, rows in found.items()}
        selected = np.flatnonzero(in_all)
        return await _confirm(name, tags, selected, common, exchanges, resources)


@asynccontextmanager
async def _exchanges(
    name: str,
    links: Mapping[str, Link],
    tags: Tags,
    terms: Mapping[str, Any],
    resources: AlignmentResources,
    emit: Callback,
    *,
    guest: str,
) -> AsyncIterator[list[Exchange]]:
    """The finished exchanges with all peers; the session and their progress end with the block."""
    exchanges: list[Exchange] = []
    try:
        exchanges = await _handshake(name, links, tags, terms, resources, guest)
        await _run_exchanges(exchanges, emit)
        yield exchanges
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await _fail(links, exchanges, resources, error)
        raise
    for exchange in exchanges:
        exchange.state.finish()
    _remove_if_empty(resources.folder)


async def _handshake(
    name: str,
    links: Mapping[str, Link],
    tags: Tags,
    terms: Mapping[str, Any],
    resources: AlignmentResources,
    guest: str,
) -> list[Exchange]:
    """Compare the terms, and agree with each peer to resume or to start over."""
    num_own = resources.num_elements(tags)
    _check_tags(name, tags, num_own)
    if resources.shard is not None:
        resources.shard.check_fits(len(tags), resources.total)
    group = resources.workers.group
    contract = {
        **terms,
        "protocol": VERSION,
        "psi.group": group.name,
        "psi.chunk_rows": resources.chunk_rows,
        "psi.order": [LAG, AHEAD],
        "psi.shard": None if resources.shard is None else str(resources.shard),
    }
    states, hellos = {}, {}
    for peer, link in links.items():
        made_for = _digest(name, peer, json.dumps(contract, sort_keys=True), tags.tobytes())
        states[peer] = ExchangeState(
            resources.folder / peer, made_for, num_own, resources.chunk_rows
        )
        offer = _resume_offer(states[peer], num_own)
        if resources.shard is not None:
            offer["total"] = resources.total
        hellos[peer] = make_hello(name, "align", contract, **offer)
        await link.send(hellos[peer])
    totals = {}
    for peer, link in links.items():
        theirs = check_contract(name, hellos[peer], peer, await link.receive())
        totals[peer] = _read_total(theirs, resources.shard, peer)
        _resume_or_start(
            states[peer], hellos[peer].body or {}, peer, theirs, resources, name == guest
        )
        allowed = specs(resources.chunk_rows, group.element_bytes)
        if name != guest:
            allowed[Kind.KEPT] = selection_spec()
        link.allow(allowed)  # before READY: tensors may follow it
    for link in links.values():
        await link.send(Message(Kind.READY))
    for link in links.values():
        expect(await link.receive(), Kind.READY)
    return [
        Exchange(link, tags, states[peer], resources.workers, totals[peer])
        for peer, link in links.items()
    ]


def _check_tags(name: str, tags: Tags, num_elements: int) -> None:
    if not 0 < num_elements <= MAX_ROWS:
        raise DataError(
            f"{name}: expected 1 to {MAX_ROWS} rows to align at a time, got {num_elements}; "
            "for more, use --shard with a larger number of shards"
        )
    halves = np.ascontiguousarray(tags).view(">u8").reshape(-1, TAG_BYTES // 8)
    first, second = halves[:, 0], halves[:, 1]
    rises = first[1:] > first[:-1]
    rises |= (first[1:] == first[:-1]) & (second[1:] > second[:-1])
    if not rises.all():
        raise DataError(f"{name}: expected the tags of rows ascending, each once")


def _resume_offer(state: ExchangeState, num_rows: int) -> dict[str, Any]:
    """Our progress, which a peer needs to resume, and a nonce to start over."""
    saved = state.saved
    return {
        "rows": num_rows,
        "nonce": secrets.token_hex(SECRET_BYTES),
        "session": saved.session if saved else None,
        "own": state.own.num_stored if saved else 0,
        "peers": state.peers.num_stored if saved else 0,
    }


def _resume_or_start(
    state: ExchangeState,
    ours: dict[str, Any],
    peer: str,
    theirs: dict[str, Any],
    resources: AlignmentResources,
    we_are_guest: bool,
) -> None:
    """Resume from the last chunks that both sides have, or start over with fresh keys."""
    rows = _read_count(theirs, "rows", 1, MAX_ROWS, peer)
    answered = _read_count(theirs, "peers", 0, MAX_ROWS, peer)
    stored = _read_count(theirs, "own", 0, MAX_ROWS, peer)
    nonce = theirs.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ProtocolError(f"from {peer}: HELLO: expected a nonce of {SECRET_BYTES} bytes")
    saved = state.saved
    if saved and theirs.get("session") == saved.session and rows == saved.peer_rows:
        state.resume(answered, stored)
    else:
        guests, hosts = (ours, theirs) if we_are_guest else (theirs, ours)
        parts = [str(side[key]) for side in (guests, hosts) for key in ("name", "rows", "nonce")]
        try:
            state.start(_digest(*parts), resources.workers.group.new_key(), rows)
        except ProtocolError as error:
            raise ProtocolError(f"from {peer}: HELLO: {error}") from None


def _read_total(theirs: dict[str, Any], shard: Shard | None, peer: str) -> int:
    """The number of rows that a peer has in all shards; raises ProtocolError if it is wrong."""
    if shard is None:
        return _read_count(theirs, "rows", 1, MAX_ROWS, peer)
    total = _read_count(theirs, "total", 1, MAX_ROWS * shard.count, peer)
    if theirs.get("rows") != shard.padded_rows(total):
        raise ProtocolError(
            f"from {peer}: HELLO: expected {shard.padded_rows(total)} rows in each of "
            f"{shard.count} shards of {total} rows"
        )
    return total


def _read_count(body: dict[str, Any], field: str, low: int, high: int, peer: str) -> int:
    value = body.get(field)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"from {peer}: HELLO: expected {field} of {low} to {high}")
    return value


async def _run_exchanges(exchanges: list[Exchange], emit: Callback) -> None:
    """Run one step with each peer in turn, until all are done."""
    total = sum(exchange.total for exchange in exchanges)
    for number in range(max((e.num_steps for e in exchanges), default=0)):
        for exchange in exchanges:
            if number < exchange.num_steps:
                await exchange.step(number)
            else:
                await _send_still_working([exchange])
        emit(AlignmentProgress(done=sum(exchange.done for exchange in exchanges), total=total))


async def _send_still_working(exchanges: list[Exchange]) -> None:
    """Send READY to hosts that wait while we work with others, so that none times out."""
    for exchange in exchanges:
        await exchange.link.send(Message(Kind.READY))


def _common_rows(exchange: Exchange, resources: AlignmentResources) -> RowNumbers:
    rows = exchange.common()
    if len(rows) == 0 and resources.shard is None:
        raise _no_common_rows(f"none of our {exchange.state.own.num_rows} rows", exchange.link.peer)
    return rows


def _no_common_rows(what: str, where: str) -> DataError:
    return DataError(
        f"{what} is at {where}. Check that all parties use the same id column, and the same format "
        "for ids (case, spaces, leading zeros)"
    )


async def _confirm(
    name: str,
    tags: Tags,
    rows: RowNumbers,
    common: dict[str, int],
    exchanges: list[Exchange],
    resources: AlignmentResources,
) -> AlignmentResult:
    """Check that every peer has selected the same rows."""
    if len(rows) == 0 and resources.shard is None:
        raise _no_common_rows("no row", "all parties")
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
    peer_rows = {exchange.link.peer: exchange.peer_total for exchange in exchanges}
    answered = {exchange.link.peer: exchange.state.answered.count for exchange in exchanges}
    return AlignmentResult(rows, digest, common, peer_rows, answered)


def _proof(exchange: Exchange, name: str, digest: str) -> str:
    """A digest that proves knowledge of the rows; bound to session and party against replay."""
    return _digest(exchange.session.hex(), name, digest)


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=SECRET_BYTES, person=b"celu.psi")
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()


async def _fail(
    links: Mapping[str, Link],
    exchanges: list[Exchange],
    resources: AlignmentResources,
    error: BaseException,
) -> None:
    """Report the error to the peers; discard progress that would lead to the same error."""
    await report_failure(links, error)
    if isinstance(error, (ProtocolError, AlignmentError, DataError)):
        for exchange in exchanges:
            exchange.state.discard()
        _remove_if_empty(resources.folder)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # it does not exist, or contains other files
        folder.rmdir()
