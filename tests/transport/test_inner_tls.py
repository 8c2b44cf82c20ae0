"""TLS inside byte strings: what arrives is what was sent, or an error; a gateway sees neither."""

from __future__ import annotations

import os
import queue
import random
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celu.errors import CeluError, PeerLost, ProtocolError
from celu.transport import inner_tls
from celu.transport.inner_tls import FLIGHT_BYTES, SEALED_BYTES, InnerTls
from celu.transport.inner_tls_engine import InnerTlsEngine
from celu.transport.tls import Credentials, answering, calling
from celu.transport.wire import PIECE_BYTES


def pair(companies: dict[str, Any]) -> tuple[InnerTls, InnerTls]:
    """The bank, which calls, and the guest."""
    guest, bank = companies["guest"], companies["bank"]
    return (
        InnerTls(Credentials.read(*bank.keys(guest)), "guest"),
        InnerTls(Credentials.read(*guest.keys(bank)), "bank", lambda: None),
    )


class Pipe:
    """One direction; `None` ends it."""

    def __init__(self) -> None:
        self.strings: queue.Queue[bytes | None] = queue.Queue()

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.strings.get(timeout=10), None)  # type: ignore[arg-type]


Conversation = tuple[InnerTls, Iterator[bytes], Pipe]


@pytest.fixture
def shaken(companies: dict[str, Any]) -> Iterator[Conversation]:
    """The bank's end after a handshake; the guest's pieces, and what brings them there."""
    ours, theirs = pair(companies)
    there, back = Pipe(), Pipe()

    def talk(inner_tls: InnerTls, into: Pipe) -> None:
        for flight in inner_tls.flights():
            into.strings.put(flight)

    ours_opened, theirs_opened = ours.opened(iter(back)), theirs.opened(iter(there))
    pieces: queue.Queue[bytes | CeluError] = queue.Queue()

    def pump(opened: Iterator[bytes], keep: bool) -> None:
        try:
            for piece in opened:
                if keep:
                    pieces.put(piece)
        except CeluError as error:
            pieces.put(error)

    works: list[tuple[Callable[..., None], Any]] = [
        (talk, (ours, there)),
        (talk, (theirs, back)),
        (pump, (ours_opened, False)),
        (pump, (theirs_opened, True)),
    ]
    threads = [threading.Thread(target=work, args=arguments) for work, arguments in works]
    for thread in threads:
        thread.start()
    ours.wait(10)
    theirs.wait(10)

    def received() -> Iterator[bytes]:
        while True:
            piece = pieces.get(timeout=10)
            if isinstance(piece, CeluError):
                raise piece
            yield piece

    yield ours, received(), there
    for pipe in (there, back):
        pipe.strings.put(None)
    for thread in threads:
        thread.join(10)


def test_a_piece_is_one_string_of_ciphertext_and_opens_to_itself(shaken: Conversation) -> None:
    ours, received, there = shaken
    for size in (1, 60, 16 * 1024, 16 * 1024 + 1, PIECE_BYTES):
        piece = os.urandom(size)
        string = ours.encrypt(piece)
        assert piece[:16] not in string or size < 16
        assert size < len(string) <= SEALED_BYTES
        there.strings.put(string)
        assert next(received) == piece


def flipped(string: bytes) -> bytes:
    return string[:40] + bytes([string[40] ^ 1]) + string[41:]


@pytest.mark.parametrize(
    "spoil",
    [
        flipped,
        lambda string: string[:20],
        lambda string: b"",
        lambda string: b"GET / HTTP/1.1\r\n\r\n",
        lambda string: bytes(SEALED_BYTES + 1),
        lambda string: string[: len(string) // 2] + string,
    ],
    ids=["flipped", "cut", "empty", "plain", "too long", "spliced"],
)
def test_what_the_peer_did_not_seal_is_refused(shaken: Conversation, spoil: Any) -> None:
    ours, received, there = shaken
    there.strings.put(spoil(ours.encrypt(os.urandom(1000))))
    with pytest.raises(ProtocolError, match="sealed"):
        next(received)


@pytest.mark.parametrize("order", [[0, 0], [1], [1, 0]], ids=["again", "left out", "swapped"])
def test_pieces_that_a_gateway_repeats_drops_or_swaps_are_refused(
    shaken: Conversation, order: list[int]
) -> None:
    ours, received, there = shaken
    strings = [ours.encrypt(bytes([i]) * 100) for i in range(2)]
    for i in order:
        there.strings.put(strings[i])
    with pytest.raises(ProtocolError, match="do not open"):
        for _ in order:
            next(received)


def sealings(companies: dict[str, Any]) -> tuple[InnerTlsEngine, InnerTlsEngine]:
    """The bank's end and the guest's after a handshake, with nothing between them."""
    said: dict[str, list[bytes]] = {"bank": [], "guest": []}
    identities = {
        "bank": Credentials.read(*companies["bank"].keys(companies["guest"])),
        "guest": Credentials.read(*companies["guest"].keys(companies["bank"])),
    }
    ends = {
        name: InnerTlsEngine(
            calling(own, peer) if name == "bank" else answering(own, [peer]),
            peer,
            own.authorities[peer],
            said[name].append,
            None if name == "bank" else lambda: None,
        )
        for (name, own), peer in zip(identities.items(), ["guest", "bank"], strict=True)
    }
    while not all(end.is_open for end in ends.values()):
        for name, peer in (("bank", "guest"), ("guest", "bank")):
            strings, said[name][:] = list(said[name]), []
            for string in strings:
                assert ends[peer].take(string) is None
    return ends["bank"], ends["guest"]


def test_a_seal_that_was_broken_by_what_arrived_seals_no_more(companies: dict[str, Any]) -> None:
    ours, theirs = sealings(companies)
    assert theirs.take(ours.encrypt(b"piece")) == b"piece"
    with pytest.raises(ProtocolError, match="do not open"):
        theirs.take(flipped(ours.encrypt(bytes(100))))
    with pytest.raises(PeerLost, match="broken"):
        theirs.encrypt(b"piece")


@pytest.mark.parametrize("after", [b"", b"more"], ids=["alone", "and more"])
def test_a_goodbye_of_tls_is_no_piece(companies: dict[str, Any], after: bytes) -> None:
    ours, theirs = sealings(companies)
    with pytest.raises(ssl.SSLWantReadError):  # it waits for ours
        ours._tls.unwrap()
    with pytest.raises(ProtocolError, match=r"without one|do not open"):
        theirs.take(ours._leaving.read() + after)


@pytest.mark.parametrize(
    ("strings", "error"),
    [
        ([b"PRI * HTTP/2.0\r\n\r\n"], ProtocolError),
        ([random.Random(1).randbytes(100)], ProtocolError),
        ([bytes(FLIGHT_BYTES + 1)], ProtocolError),
        ([], PeerLost),
    ],
    ids=["another protocol", "noise", "too long", "nothing"],
)
def test_what_is_no_handshake_ends_it(
    companies: dict[str, Any], strings: list[bytes], error: type[CeluError]
) -> None:
    for side in pair(companies):
        with pytest.raises(error):
            next(side.opened(iter(strings)))
        assert side.is_over()
        with pytest.raises(error):
            side.wait(0)
        last = list(side.flights())  # perhaps a first word and an alert, and then no more
        assert len(last) <= 2


def test_a_handshake_that_does_not_go_on_ends_at_its_deadline(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_tls, "HANDSHAKE_S", 0.05)
    ours, theirs = pair(companies)
    assert len(list(ours.flights())) == 1  # its first word, and no answer
    assert list(theirs.flights()) == []
    for side in (ours, theirs):
        with pytest.raises(PeerLost, match=r"within 0\.05 s"):
            side.wait(0)
