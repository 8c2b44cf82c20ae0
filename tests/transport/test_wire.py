"""Messages as bytes, and the errors for bytes that are no message."""

from __future__ import annotations

import itertools
import json
import math
import struct
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celu.errors import (
    CeluError,
    NonFiniteError,
    PeerFailed,
    PeerLost,
    ProtocolError,
    ShapeError,
)
from celu.transport import wire
from celu.transport.link import run_blocking
from celu.transport.message import (
    MAX_CURVATURE,
    TENSORS,
    Kind,
    Message,
    TensorSpec,
    expect,
    require_rows,
)
from celu.transport.stream import StreamLink
from celu.transport.wire import HEADER, PIECE_BYTES, Header, decode_header, encode
from decoding import decode
from fuzz.frames import FIELDS

SPEC = TensorSpec(max_rows=8, width=3)
SPECS = {Kind.ACTIVATION: SPEC, Kind.DERIVATIVE: SPEC, Kind.TEST_ACTIVATION: SPEC}
TENSOR = Message(Kind.ACTIVATION, 9, 2, torch.arange(12.0).reshape(4, 3))
BODY = Message(Kind.VERDICT, 9, 2, body={"stop": True})


def header_of(message: Message, **changes: Any) -> bytes:
    """A message's header as number 5 of its sender, with some fields changed."""
    fields = dict(zip(FIELDS, HEADER.unpack(next(encode(message, 5))), strict=True))
    assert changes.keys() <= fields.keys()
    return HEADER.pack(*(fields | changes).values())


def round_trip(message: Message) -> Message:
    pieces = encode(message, 5)
    return decode(decode_header(next(pieces), 5, SPECS), pieces)


def body_of(payload: bytes) -> Message:
    header = Header(Kind.HELLO, 0, 0, None, torch.uint8, len(payload), bytes(16))
    return decode(header, iter([payload] if payload else []))


def test_the_header_is_laid_out_as_documented() -> None:
    header = bytes.fromhex(
        "43454c55 04 03 01 02 0500000000000000 0000000000000000 "
        "0900000000000000 02000000 04000000 03000000"
        "3000000000000000 000102030405060708090a0b0c0d0e0f 000000000000e03f"
    )
    message = replace(TENSOR, row_digest=bytes(range(16)), curvature=0.5)
    assert next(encode(message, 5)) == header


@pytest.mark.parametrize("kind", [Kind.ACTIVATION, Kind.DERIVATIVE, Kind.TEST_ACTIVATION])
def test_a_tensor_survives_the_round_trip_bit_for_bit(kind: Kind) -> None:
    tensor = torch.tensor([[0.1, -0.0, 1e-45]])
    arrived = round_trip(Message(kind, 2**63, 2**32 - 1, tensor))
    assert (arrived.kind, arrived.round, arrived.part) == (kind, 2**63, 2**32 - 1)
    assert arrived.tensor is not None
    assert arrived.body is None
    assert torch.equal(arrived.tensor.view(torch.int32), tensor.view(torch.int32))


@pytest.mark.parametrize("curvature", [0.0, 5e-324, 0.1, 1.0, MAX_CURVATURE])
def test_a_curvature_survives_the_round_trip_bit_for_bit(curvature: float) -> None:
    message = Message(Kind.DERIVATIVE, 1, tensor=torch.ones(1, 3), curvature=curvature)
    assert round_trip(message).curvature == curvature


@pytest.mark.parametrize("curvature", [math.nan, -1.0, math.inf, -math.inf, 1e300, 1.1e12])
def test_a_curvature_out_of_range_is_refused_by_name(curvature: float) -> None:
    message = Message(Kind.DERIVATIVE, 1, tensor=torch.ones(1, 3), curvature=curvature)
    with pytest.raises(ProtocolError, match=r"DERIVATIVE: expected a curvature from 0 to 1e\+12"):
        round_trip(message)


@pytest.mark.parametrize("kind", sorted(set(Kind) - TENSORS - {Kind.HEARTBEAT}))
def test_a_body_survives_the_round_trip(kind: Kind) -> None:
    message = Message(kind, 3, 1, body={"a": [1, 2.5, None, "ü"], "b": {"c": False}})
    assert round_trip(message) == message


def test_bytes_survive_the_round_trip() -> None:
    blinded = torch.randint(0, 256, (5, 32), dtype=torch.uint8)
    pieces = encode(Message(Kind.BLINDED, 3, tensor=blinded, row_digest=bytes(range(16))), 5)
    specs = {Kind.BLINDED: TensorSpec(8, 32, torch.uint8)}
    arrived = decode(decode_header(next(pieces), 5, specs), pieces)
    assert arrived.tensor is not None
    assert torch.equal(arrived.tensor, blinded)
    assert arrived.row_digest == bytes(range(16))


def test_a_large_payload_comes_in_pieces_no_larger_than_the_limit() -> None:
    rows = 3 * PIECE_BYTES // (4 * 1024) + 1
    message = Message(Kind.ACTIVATION, tensor=torch.randn(rows, 1024))
    header, *pieces = encode(message, 0)
    assert [len(p) for p in pieces] == [PIECE_BYTES] * 3 + [4 * 1024]
    assert wire.num_bytes(message) == len(header) + sum(len(p) for p in pieces)


def test_num_bytes_is_the_size_on_the_wire() -> None:
    for message in (TENSOR, BODY, Message(Kind.READY), Message(Kind.HELLO, body={"ü": "日本"})):
        assert wire.num_bytes(message) == sum(len(piece) for piece in encode(message, 0))


@pytest.mark.parametrize(
    ("message", "changes", "error"),
    [
        (TENSOR, {"magic": b"CELV"}, ProtocolError),
        (TENSOR, {"magic": b"HTTP", "version": 0}, ProtocolError),
        (TENSOR, {"version": 0}, ProtocolError),
        (TENSOR, {"version": 2}, ProtocolError),
        (TENSOR, {"version": 5}, ProtocolError),
        (TENSOR, {"kind": 0}, ProtocolError),
        (TENSOR, {"kind": Kind.BLINDED}, ProtocolError),
        (TENSOR, {"kind": 13}, ProtocolError),
        (TENSOR, {"kind": 255}, ProtocolError),
        (TENSOR, {"kind": Kind.HELLO}, ProtocolError),
        (TENSOR, {"dtype": 0}, ProtocolError),
        (TENSOR, {"dtype": 2}, ShapeError),
        (TENSOR, {"dtype": 3}, ShapeError),
        (TENSOR, {"dtype": 4}, ProtocolError),
        (TENSOR, {"rank": 0}, ProtocolError),
        (TENSOR, {"rank": 1}, ProtocolError),
        (TENSOR, {"rank": 3}, ProtocolError),
        (TENSOR, {"sequence": 4}, ProtocolError),
        (TENSOR, {"sequence": 6}, ProtocolError),
        (TENSOR, {"sequence": 2**64 - 1}, ProtocolError),
        (TENSOR, {"rows": 0, "length": 0}, ShapeError),
        (TENSOR, {"rows": 3}, ProtocolError),
        (TENSOR, {"rows": 9, "length": 9 * 12}, ShapeError),
        (TENSOR, {"rows": 2**32 - 1, "length": (2**32 - 1) * 12}, ShapeError),
        (TENSOR, {"width": 0, "length": 0}, ShapeError),
        (TENSOR, {"width": 4, "length": 64}, ShapeError),
        (TENSOR, {"width": 2**32 - 1}, ShapeError),
        (TENSOR, {"length": 0}, ProtocolError),
        (TENSOR, {"length": 47}, ProtocolError),
        (TENSOR, {"length": 2**63}, ProtocolError),
        (TENSOR, {"length": 2**64 - 1}, ProtocolError),
        (BODY, {"kind": Kind.ACTIVATION}, ProtocolError),
        (BODY, {"dtype": 1}, ProtocolError),
        (BODY, {"rank": 2}, ProtocolError),
        (BODY, {"rows": 1}, ProtocolError),
        (BODY, {"width": 1}, ProtocolError),
        (BODY, {"length": wire.MAX_BODY_BYTES + 1}, ProtocolError),
        (BODY, {"length": 2**63}, ProtocolError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(getattr(value, "kind", value)),
)
def test_a_header_with_one_field_changed_is_refused(
    message: Message, changes: dict[str, Any], error: type[CeluError]
) -> None:
    decode_header(header_of(message), 5, SPECS)
    with pytest.raises(error) as refused:
        decode_header(header_of(message, **changes), 5, SPECS)
    assert type(refused.value) is error


@pytest.mark.parametrize("message", [TENSOR, BODY], ids=["tensor", "body"])
@pytest.mark.parametrize("field", ["round", "part"])
def test_expect_refuses_another_round_or_part(message: Message, field: str) -> None:
    pieces = iter(list(encode(message, 5))[1:])
    arrived = decode(decode_header(header_of(message, **{field: 11}), 5, SPECS), pieces)
    expect(round_trip(message), message.kind, 9, 2)
    with pytest.raises(ProtocolError, match=rf"expected {message.kind.name} .*got .*{field} 11"):
        expect(arrived, message.kind, 9, 2)


def test_another_kind_or_number_of_rows_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"expected READY .*got VERDICT"):
        expect(BODY, Kind.READY, 9, 2)
    with pytest.raises(ShapeError, match="expected 5 rows, got 4"):
        require_rows(TENSOR, 5)
    with pytest.raises(ShapeError, match="expected 4 rows, got none"):
        require_rows(BODY, 4)


@pytest.mark.parametrize("size", [0, 1, HEADER.size - 1, HEADER.size + 1, PIECE_BYTES])
def test_a_header_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"got {size}"):
        decode_header((header_of(TENSOR) * (size // HEADER.size + 1))[:size], 5, SPECS)


def test_an_announced_size_allocates_nothing() -> None:
    huge = 2**63
    claims = [
        header_of(BODY, length=huge),
        header_of(TENSOR, length=huge),
        header_of(TENSOR, rows=2**32 - 1, width=2**32 - 1, length=huge),
        header_of(TENSOR, rows=2**31, width=3, length=2**31 * 12),
    ]
    tracemalloc.start()
    try:
        for claim in claims:
            with pytest.raises(ProtocolError):  # here, before decode allocates
                decode_header(claim, 5, SPECS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@given(st.binary(min_size=HEADER.size - 2, max_size=HEADER.size + 2))
def test_arbitrary_bytes_are_refused_with_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_header(data, 5, SPECS)


@given(
    st.tuples(
        st.sampled_from([wire.MAGIC, b"CELV"]),
        *(st.integers(0, limit) for limit in (wire.VERSION, 21, 5, 3, 6)),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 10),
        st.integers(0, 4),
        st.integers(0, 100) | st.integers(0, 2**64 - 1),
        st.binary(min_size=16, max_size=16),
        st.floats(),
    )
)
def test_headers_that_look_right_are_refused_or_within_the_contract(fields: Any) -> None:
    try:
        header = decode_header(HEADER.pack(*fields), 5, SPECS)
    except ProtocolError:
        return
    if header.shape is None:
        assert header.length <= wire.MAX_BODY_BYTES
    else:
        rows, width = header.shape
        assert 0 < rows <= SPEC.max_rows
        assert width == SPEC.width
        assert header.length == rows * width * 4


@given(st.binary(max_size=64))
def test_an_arbitrary_payload_is_a_json_object_or_refused(payload: bytes) -> None:
    try:
        assert isinstance(body_of(payload).body, dict)
    except ProtocolError as error:
        assert error.public().startswith("HELLO: expected")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"\x80\x04N.",  # a pickle
        b"[]",
        b"3",
        b"null",
        b'"text"',
        b"[" * 100_000,
        b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        json.dumps({"a": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}).encode(),
        b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_a_body_that_is_no_plain_json_object_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="HELLO: expected"):
        body_of(payload)


def split(payload: bytes, *sizes: int) -> list[bytes]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [payload[start : start + size] for start, size in zip(starts, sizes, strict=True)]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        split(bytes(48), 47),
        split(bytes(48), 20, 20),
        [bytes(49)],
        split(bytes(60), 40, 9),
        [bytes(40), b"", bytes(8)],
        [b""],
    ],
    ids=["none", "short", "cut", "long", "long at the end", "an empty piece", "empty"],
)
@pytest.mark.parametrize("shape", [(4, 3), None], ids=["tensor", "body"])
def test_a_payload_of_another_length_than_announced_is_refused(
    pieces: list[bytes], shape: tuple[int, int] | None
) -> None:
    kind = Kind.ACTIVATION if shape else Kind.HELLO
    header = Header(kind, 0, 0, shape, torch.float32 if shape else torch.uint8, 48, bytes(16))
    with pytest.raises(ProtocolError, match=r"expected \d+ (more )?bytes, got \d+"):
        decode(header, iter(pieces))


# Links that receive bytes of a misbehaving peer.


def link_after(pieces: Iterable[bytes]) -> StreamLink:
    """A link whose only connection received a greeting and these pieces."""
    link = StreamLink("bank", deadline_s=0.05, outage_s=0.05)
    link.allow(SPECS)
    greeting = {"token": "0" * 32, "knows": None, "received": 0}
    first = encode(Message(Kind.GREETING, body=greeting), 0)
    link.new_connection(dials=True).receive_pieces(itertools.chain(first, pieces))
    return link


def numbered(*numbers: int) -> list[bytes]:
    return [piece for n in numbers for piece in encode(Message(Kind.READY, round=n), n)]


@pytest.mark.parametrize(
    ("numbers", "accepted"), [((1,), 0), ((0, 0), 1), ((0, 1, 3), 2), ((0, 1, 2, 1), 3)]
)
def test_a_gap_or_a_repeat_ends_the_link_with_nothing_applied_after_it(
    numbers: tuple[int, ...], accepted: int
) -> None:
    link = link_after(numbered(*numbers))
    for number in range(accepted):
        assert run_blocking(link.receive()).round == number
    for _ in range(2):
        with pytest.raises(ProtocolError, match=f"from bank: expected message number {accepted}"):
            run_blocking(link.receive())
    assert link.traffic.received.messages == accepted


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_or_inf_from_a_peer_is_refused_when_it_is_received(value: float) -> None:
    tensor = torch.zeros(4, 3)
    tensor[3, 2] = value
    link = link_after(encode(Message(Kind.ACTIVATION, 17, tensor=tensor), 0))
    with pytest.raises(NonFiniteError, match="ACTIVATION from bank of round 17"):
        run_blocking(link.receive())


def test_a_stream_cut_within_a_message_is_refused() -> None:
    header, payload = encode(TENSOR, 0)
    for pieces in ([header], [header, payload[:-1]]):
        with pytest.raises(PeerLost, match="bank closed the link"):
            run_blocking(link_after(pieces).receive())


def test_bytes_after_a_message_are_read_as_a_header_and_refused() -> None:
    link = link_after([*encode(BODY, 0), b"more"])
    assert run_blocking(link.receive()) == BODY
    with pytest.raises(ProtocolError, match="expected a header"):
        run_blocking(link.receive())


def test_nothing_is_received_after_a_peers_failure() -> None:
    failure = Message(Kind.FAILURE, body={"reason": "DataError"})
    link = link_after([*encode(failure, 0), *encode(Message(Kind.READY), 1)])
    for _ in range(2):
        with pytest.raises(PeerFailed, match="bank stopped: DataError"):
            run_blocking(link.receive())


def test_an_error_of_the_carrier_is_a_lost_peer_and_never_silent() -> None:
    def broken() -> Iterable[bytes]:
        yield from encode(BODY, 0)
        raise OSError("no route")

    link = link_after(broken())
    assert run_blocking(link.receive()) == BODY
    with pytest.raises(PeerLost, match="the link to bank broke: no route"):
        run_blocking(link.receive())


def test_closing_does_not_wait_for_a_carrier_that_gave_up_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celu.transport.stream.CLOSE_S", 60.0)
    link = link_after([])
    connection = link.new_connection(dials=True)
    sending = connection.outgoing_pieces()
    next(sending)
    sending.close()  # as gRPC does when a call has ended
    connection.receive_pieces(iter(()))
    link.close()  # would take a minute


def test_a_float_is_packed_little_endian() -> None:
    _, payload = encode(Message(Kind.ACTIVATION, tensor=torch.tensor([[1.5, -2.0, 0.0]])), 0)
    assert payload == struct.pack("<3f", 1.5, -2.0, 0.0)
