"""The inner TLS: pieces arrive as they were sent or raise an error; a gateway sees ciphertext."""

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
from celu.transport.inner_tls import MAX_ENCRYPTED_BYTES, MAX_FLIGHT_BYTES, InnerTls
from celu.transport.inner_tls_engine import InnerTlsEngine
from celu.transport.tls import Credentials, client_context, server_context
from celu.transport.wire import PIECE_BYTES


def pair(companies: dict[str, Any]) -> tuple[InnerTls, InnerTls]:
    """The bank, which dials, and the guest."""
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
        return iter(lambda: self.strings.get(timeout=600), None)  # type: ignore[arg-type]


Session = tuple[InnerTls, Iterator[bytes], Pipe]


@pytest.fixture
def session(companies: dict[str, Any]) -> Iterator[Session]:
    """After a handshake: the bank's end, the pieces that the guest receives, and the pipe to it."""
    ours, theirs = pair(companies)
    there, back = Pipe(), Pipe()

    def send_handshake(inner_tls: InnerTls, into: Pipe) -> None:
        for flight in inner_tls.handshake_flights():
            into.strings.put(flight)

    at_bank, at_guest = ours.decrypted(iter(back)), theirs.decrypted(iter(there))
    pieces: queue.Queue[bytes | CeluError] = queue.Queue()

    def receive(decrypted: Iterator[bytes], collect: bool) -> None:
        try:
            for piece in decrypted:
                if collect:
                    pieces.put(piece)
        except CeluError as error:
            pieces.put(error)

    tasks: list[tuple[Callable[..., None], Any]] = [
        (send_handshake, (ours, there)),
        (send_handshake, (theirs, back)),
        (receive, (at_bank, False)),
        (receive, (at_guest, True)),
    ]
    threads = [threading.Thread(target=task, args=arguments) for task, arguments in tasks]
    for thread in threads:
        thread.start()
    ours.wait(600)
    theirs.wait(600)

    def received() -> Iterator[bytes]:
        while True:
            piece = pieces.get(timeout=600)
            if isinstance(piece, CeluError):
                raise piece
            yield piece

    yield ours, received(), there
    for pipe in (there, back):
        pipe.strings.put(None)
    for thread in threads:
        thread.join(600)


def test_a_piece_is_encrypted_to_one_string_and_decrypted_to_itself(session: Session) -> None:
    ours, received, there = session
    for size in (1, 60, 16 * 1024, 16 * 1024 + 1, PIECE_BYTES):
        piece = os.urandom(size)
        string = ours.encrypt(piece)
        assert piece[:16] not in string or size < 16
        assert size < len(string) <= MAX_ENCRYPTED_BYTES
        there.strings.put(string)
        assert next(received) == piece


def flipped(string: bytes) -> bytes:
    return string[:40] + bytes([string[40] ^ 1]) + string[41:]


@pytest.mark.parametrize(
    "tamper",
    [
        flipped,
        lambda string: string[:20],
        lambda string: b"",
        lambda string: b"GET / HTTP/1.1\r\n\r\n",
        lambda string: bytes(MAX_ENCRYPTED_BYTES + 1),
        lambda string: string[: len(string) // 2] + string,
    ],
    ids=["flipped", "cut", "empty", "plain", "too long", "spliced"],
)
def test_bytes_that_the_peer_did_not_encrypt_are_refused(session: Session, tamper: Any) -> None:
    ours, received, there = session
    there.strings.put(tamper(ours.encrypt(os.urandom(1000))))
    with pytest.raises(ProtocolError, match="encrypted"):
        next(received)


@pytest.mark.parametrize("order", [[0, 0], [1], [1, 0]], ids=["repeated", "dropped", "swapped"])
def test_pieces_that_a_gateway_repeats_drops_or_swaps_are_refused(
    session: Session, order: list[int]
) -> None:
    ours, received, there = session
    strings = [ours.encrypt(bytes([i]) * 100) for i in range(2)]
    for i in order:
        there.strings.put(strings[i])
    with pytest.raises(ProtocolError, match="do not decrypt"):
        for _ in order:
            next(received)


def engines(companies: dict[str, Any]) -> tuple[InnerTlsEngine, InnerTlsEngine]:
    """The bank's and the guest's engine after a handshake."""
    flights: dict[str, list[bytes]] = {"bank": [], "guest": []}
    credentials = {
        "bank": Credentials.read(*companies["bank"].keys(companies["guest"])),
        "guest": Credentials.read(*companies["guest"].keys(companies["bank"])),
    }
    ends = {
        name: InnerTlsEngine(
            client_context(own, peer) if name == "bank" else server_context(own, [peer]),
            peer,
            own.authorities[peer],
            flights[name].append,
            None if name == "bank" else lambda: None,
        )
        for (name, own), peer in zip(credentials.items(), ["guest", "bank"], strict=True)
    }
    while not all(end.is_open for end in ends.values()):
        for name, peer in (("bank", "guest"), ("guest", "bank")):
            strings, flights[name][:] = list(flights[name]), []
            for string in strings:
                assert ends[peer].receive(string) is None
    return ends["bank"], ends["guest"]


def test_after_tampered_bytes_nothing_is_encrypted_any_more(companies: dict[str, Any]) -> None:
    ours, theirs = engines(companies)
    assert theirs.receive(ours.encrypt(b"piece")) == b"piece"
    with pytest.raises(ProtocolError, match="do not decrypt"):
        theirs.receive(flipped(ours.encrypt(bytes(100))))
    with pytest.raises(PeerLost, match="broken"):
        theirs.encrypt(b"piece")


@pytest.mark.parametrize("after", [b"", b"more"], ids=["alone", "with more"])
def test_a_close_notify_of_tls_is_not_a_piece(companies: dict[str, Any], after: bytes) -> None:
    ours, theirs = engines(companies)
    with pytest.raises(ssl.SSLWantReadError):  # it waits for the other side's
        ours._tls.unwrap()
    with pytest.raises(ProtocolError, match=r"without one|do not decrypt"):
        theirs.receive(ours._outgoing.read() + after)


@pytest.mark.parametrize(
    ("strings", "error"),
    [
        ([b"PRI * HTTP/2.0\r\n\r\n"], ProtocolError),
        ([random.Random(1).randbytes(100)], ProtocolError),
        ([bytes(MAX_FLIGHT_BYTES + 1)], ProtocolError),
        ([], PeerLost),
    ],
    ids=["another protocol", "noise", "too long", "nothing"],
)
def test_bytes_that_are_no_handshake_fail_it(
    companies: dict[str, Any], strings: list[bytes], error: type[CeluError]
) -> None:
    for side in pair(companies):
        with pytest.raises(error):
            next(side.decrypted(iter(strings)))
        assert side.handshake_ended()
        with pytest.raises(error):
            side.wait(0)
        flights = list(side.handshake_flights())  # at most a ClientHello and an alert
        assert len(flights) <= 2


def test_a_stalled_handshake_fails_at_its_deadline(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_tls, "HANDSHAKE_S", 0.05)
    ours, theirs = pair(companies)
    assert len(list(ours.handshake_flights())) == 1  # its ClientHello, without an answer
    assert list(theirs.handshake_flights()) == []
    for side in (ours, theirs):
        with pytest.raises(PeerLost, match=r"within 0\.05 s"):
            side.wait(0)
