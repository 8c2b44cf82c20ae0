"""Protocol violations are named and refused, and leave only the count of answered ids behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from celu.errors import AlignmentError, ContractMismatch, ProtocolError, ShapeError
from celu.events import ignore
from celu.psi.protocol import AlignmentResources, align_host
from celu.psi.selection import MAX_ROWS
from celu.psi.workers import Workers
from celu.transport.link import Link
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message
from psi.parties import TERMS, Party, Wrapped, align, run_to_completion, tags_of

ROWS = 30  # in chunks of 8
Change = Callable[[Message], Message]


def tensor(kind: Kind, change: Callable[[Tensor], Tensor], chunk: int = 1) -> Change:
    """Change the tensor of one chunk of a kind."""

    def send(message: Message) -> Message:
        if message.kind is kind and message.round == chunk:
            assert message.tensor is not None
            return replace(message, tensor=change(message.tensor.clone()))
        return message

    return send


def body(kind: Kind, **fields: Any) -> Change:
    def send(message: Message) -> Message:
        if message.kind is kind:
            return replace(message, body={**(message.body or {}), **fields})
        return message

    return send


def number(kind: Kind, chunk: int, instead: int) -> Change:
    def send(message: Message) -> Message:
        if message.kind is kind and message.round == chunk:
            return replace(message, round=instead)
        return message

    return send


def set_row(row: int, value: bytes) -> Callable[[Tensor], Tensor]:
    def change(data: Tensor) -> Tensor:
        data[row] = torch.tensor(list(value), dtype=torch.uint8)
        return data

    return change


def first_twice(data: Tensor) -> Tensor:
    data[1] = data[0]
    return data


def repeat_first(kind: Kind) -> Change:
    """Repeat the first chunk's first element in the last chunk."""
    seen: list[Tensor] = []

    def send(message: Message) -> Message:
        if message.kind is kind and message.tensor is not None:
            if message.round == 0:
                seen[:] = [message.tensor[0].clone()]
            if message.round == 3:
                changed = message.tensor.clone()
                changed[0] = seen[0]
                return replace(message, tensor=changed)
        return message

    return send


def more(data: Tensor) -> Tensor:
    return torch.cat([data, data[:1] ^ 1])


def fewer(data: Tensor) -> Tensor:
    return data[:-1]


def not_on_the_curve() -> bytes:
    return (1).to_bytes(32)


CASES: dict[str, tuple[Change, type[Exception], str]] = {
    "not a point": (
        tensor(Kind.BLINDED, set_row(2, not_on_the_curve())),
        ProtocolError,
        "BLINDED of round 1: expected points of P-256",
    ),
    "x beyond the field": (
        tensor(Kind.BLINDED, set_row(2, b"\xff" * 32)),
        ProtocolError,
        "BLINDED of round 1: expected points of P-256",
    ),
    "an element twice in a chunk": (
        tensor(Kind.BLINDED, first_twice),
        ProtocolError,
        "BLINDED: expected every element once",
    ),
    "an element in two chunks": (
        repeat_first(Kind.BLINDED),
        ProtocolError,
        "BLINDED: expected every element once",
    ),
    "an answer twice in a chunk": (
        tensor(Kind.REBLINDED, first_twice),
        ProtocolError,
        "REBLINDED: expected every element once",
    ),
    "an answer in two chunks": (
        repeat_first(Kind.REBLINDED),
        ProtocolError,
        "REBLINDED: expected every element once",
    ),
    "a chunk too large": (tensor(Kind.BLINDED, more), ShapeError, "BLINDED: expected"),
    "the last chunk too large": (tensor(Kind.BLINDED, more, 3), ShapeError, "expected 6 rows"),
    "a chunk too small": (tensor(Kind.BLINDED, fewer), ShapeError, "expected 8 rows, got 7"),
    "an answer too large": (tensor(Kind.REBLINDED, more), ShapeError, "REBLINDED: expected"),
    "an answer too small": (tensor(Kind.REBLINDED, fewer), ShapeError, "expected 8 rows, got 7"),
    "an element too short": (
        tensor(Kind.BLINDED, lambda data: data[:, :31]),
        ShapeError,
        "BLINDED: expected",
    ),
    "floats for bytes": (tensor(Kind.BLINDED, Tensor.float), ShapeError, "BLINDED: expected"),
    "a repeated chunk": (
        number(Kind.BLINDED, 1, 0),
        ProtocolError,
        "expected BLINDED of round 1 part 0, got BLINDED of round 0",
    ),
    "a missing chunk": (number(Kind.REBLINDED, 0, 1), ProtocolError, "expected REBLINDED"),
    "more rows than any party has": (
        body(Kind.HELLO, rows=MAX_ROWS + 1),
        ProtocolError,
        "expected rows of 1 to",
    ),
    "no rows": (body(Kind.HELLO, rows=0), ProtocolError, "expected rows of 1 to"),
    "rows that are not a count": (body(Kind.HELLO, rows=True), ProtocolError, "expected rows"),
    "more rows than it sends": (body(Kind.HELLO, rows=ROWS + 1), ProtocolError, "expected 7 rows"),
    "fewer rows than it sends": (body(Kind.HELLO, rows=20), ProtocolError, "expected 4 rows"),
    "chunks that are not a count": (body(Kind.HELLO, own=-1), ProtocolError, "expected own of 0"),
    "a nonce that is not text": (body(Kind.HELLO, nonce=7), ProtocolError, "expected a nonce"),
    "a nonce too short": (body(Kind.HELLO, nonce="ab"), ProtocolError, "expected a nonce"),
    "a nonce that is not hexadecimal": (
        body(Kind.HELLO, nonce="\ud800" * 64),
        ProtocolError,
        "a nonce",
    ),
    "another name": (body(Kind.HELLO, name="other"), ProtocolError, "HELLO with the name"),
    "another purpose": (body(Kind.HELLO, purpose="run"), ContractMismatch, " runs `celu run`"),
    "an unknown purpose": (body(Kind.HELLO, purpose=[]), ContractMismatch, "`something else`"),
    "other rows at the end": (
        body(Kind.ALIGNED, commitment="00" * 32),
        AlignmentError,
        "ended with different rows",
    ),
    "another count at the end": (body(Kind.ALIGNED, rows=9), AlignmentError, "different rows"),
}


@pytest.mark.parametrize("culprit", ["guest", "host"])
@pytest.mark.parametrize("case", CASES)
def test_a_protocol_violation_is_refused(tmp_path: Path, case: str, culprit: str) -> None:
    change, expected, text = CASES[case]
    parties = {name: Party(range(ROWS)) for name in ("guest", "host")}
    parties[culprit].wrap = lambda link: Wrapped(link, change)
    outcomes = align(tmp_path, **parties)
    victim = "host" if culprit == "guest" else "guest"
    outcome = outcomes[victim]
    assert isinstance(outcome, expected), repr(outcome)
    assert text in str(outcome)
    left = {path.name for path in (tmp_path / victim).rglob("*") if path.is_file()}
    assert left <= {"answered"}


@pytest.mark.parametrize(
    ("u", "text"), [(2, "got an invalid one"), (1, "got one of small order"), (0, "got an invalid")]
)
def test_a_point_of_the_twist_or_of_small_order_is_refused(
    tmp_path: Path, u: int, text: str
) -> None:
    change = tensor(Kind.BLINDED, set_row(2, u.to_bytes(32, "little")))
    host = Party(range(ROWS), wrap=lambda link: Wrapped(link, change))
    guest = Party(range(ROWS))
    guest.workers = host.workers = Workers(group="x25519")
    outcome = align(tmp_path, guest, host=host)["guest"]
    assert isinstance(outcome, ProtocolError)
    assert "BLINDED of round 1: expected points of Curve25519" in str(outcome)
    assert text in str(outcome)


def test_an_empty_chunk_is_refused(tmp_path: Path) -> None:
    def empty_chunks(link: Link) -> Link:
        async def send(message: Message) -> None:
            if message.kind is Kind.BLINDED and message.tensor is not None:
                empty = replace(message, tensor=message.tensor[:0])
                link._outgoing.queue.append((empty, 0.0, 0.0))  # type: ignore[attr-defined]
            else:
                await link.send(message)

        wrapped = Wrapped(link)
        wrapped.send = send  # type: ignore[method-assign]
        return wrapped

    outcomes = align(tmp_path, Party(range(ROWS)), host=Party(range(ROWS), wrap=empty_chunks))
    assert isinstance(outcomes["guest"], ShapeError)


def test_a_peer_that_echoes_our_elements_is_refused(tmp_path: Path) -> None:
    seen: dict[int, Tensor] = {}

    def receive(message: Message) -> Message:
        if message.kind is Kind.BLINDED and message.tensor is not None:
            seen[message.round] = message.tensor
        return message

    def send(message: Message) -> Message:
        if message.kind is Kind.REBLINDED:
            return replace(message, tensor=seen[message.round][:, :16])
        return message

    echo = Party(range(ROWS), wrap=lambda link: Wrapped(link, send, receive))
    outcomes = align(tmp_path, Party(range(ROWS)), host=echo)
    assert isinstance(outcomes["guest"], ProtocolError)
    assert "REBLINDED of round 0: an element was returned unchanged" in str(outcomes["guest"])


def test_a_peer_that_replays_our_messages_cannot_claim_our_rows(
    tmp_path: Path,
) -> None:
    to_host, to_guest = memory_links("guest", "host")

    async def mirror() -> None:
        """A guest without rows: sends our elements and our answers back to us."""
        hello = await to_host.receive()
        await to_host.send(replace(hello, body={**(hello.body or {}), "name": "guest"}))
        await to_host.send(await to_host.receive())
        to_host.allow(to_guest._specs)
        await to_host.send(await to_host.receive())  # BLINDED
        await to_host.send(await to_host.receive())  # REBLINDED
        all_selected = torch.full((1, 1), 255, dtype=torch.uint8)
        await to_host.send(Message(Kind.KEPT, tensor=all_selected))
        await to_host.send(await to_host.receive())  # ALIGNED
        await to_host.receive()

    resources = AlignmentResources(tmp_path, Workers())
    host = align_host("host", to_guest, tags_of(range(8)), TERMS, resources, ignore)
    links: dict[str, list[Link]] = {"guest": [to_host], "host": [to_guest]}
    outcomes = run_to_completion({"host": host, "guest": mirror()}, links)
    assert isinstance(outcomes["host"], AlignmentError)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (more, "KEPT of round 0 from guest: expected 4 rows, got 5"),
        (fewer, "KEPT of round 0 from guest: expected 4 rows, got 3"),
        (lambda data: data | 1, "expected a bit for each common row"),
    ],
)
def test_a_selection_of_the_wrong_size_is_refused(
    tmp_path: Path, change: Callable[[Tensor], Tensor], text: str
) -> None:
    alter = tensor(Kind.KEPT, change, chunk=0)
    guest = Party(range(ROWS), wrap=lambda link: Wrapped(link, alter))
    outcomes = align(tmp_path, guest, host=Party(range(ROWS)))
    assert isinstance(outcomes["host"], ProtocolError)
    assert text in str(outcomes["host"])


def test_a_selection_that_differs_from_the_guests_is_detected(tmp_path: Path) -> None:
    alter = tensor(Kind.KEPT, lambda data: data & 0xFE, chunk=0)
    guest = Party(range(ROWS), wrap=lambda link: Wrapped(link, alter))
    for outcome in align(tmp_path, guest, host=Party(range(ROWS))).values():
        assert isinstance(outcome, (AlignmentError, ProtocolError))


def test_a_host_may_not_send_a_selection(tmp_path: Path) -> None:
    selection = Message(Kind.KEPT, tensor=torch.ones(1, 1, dtype=torch.uint8))
    host = Party(
        range(ROWS),
        wrap=lambda link: Wrapped(link, lambda m: selection if m.kind is Kind.ALIGNED else m),
    )
    outcomes = align(tmp_path, Party(range(ROWS)), host=host)
    assert isinstance(outcomes["guest"], ProtocolError)
    assert "KEPT: not expected at this point" in str(outcomes["guest"])
