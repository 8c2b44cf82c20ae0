"""The contract of every link, over every transport, with one host and with three."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from celu.errors import (
    NonFiniteError,
    PeerFailed,
    PeerLost,
    ProtocolError,
    ShapeError,
)
from celu.transport.delivery import MAX_UNACKED_BYTES
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, Traffic
from celu.transport.stream import QUEUED_MESSAGES
from celu.transport.wire import HEADER

pytestmark = pytest.mark.parametrize(
    "federate",
    [
        ("memory", 1),
        ("memory", 3),
        ("tls", 1),
        ("tls", 3),
        ("insecure", 1),
        ("inner-tls", 1),
        ("streams", 1),
        ("channels", 3),
        ("inner-tls-streams", 1),
        ("websocket", 3),
        ("websocket-insecure", 1),
        ("websocket-inner-tls", 1),
    ],
    ids=lambda kind: f"{kind[0]}-{kind[1]}",
    indirect=True,
)
Federate = Callable[..., Any]
SPEC = TensorSpec(max_rows=4, width=3)


def allow(link: Link, spec: TensorSpec = SPEC) -> None:
    link.allow({Kind.ACTIVATION: spec, Kind.DERIVATIVE: spec, Kind.TEST_ACTIVATION: spec})


async def send(link: Link, messages: Sequence[Message]) -> int:
    for message in messages:
        await link.send(message)
    return len(messages)


async def receive(links: Mapping[str, Link], number: int) -> dict[str, list[Message]]:
    return {name: [await link.receive() for _ in range(number)] for name, link in links.items()}


async def receive_one(link: Link) -> Message:
    return await link.receive()


def matrix(rows: int = 4, width: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def activation(tensor: torch.Tensor, round_: int = 0) -> Message:
    return Message(Kind.ACTIVATION, round_, tensor=tensor)


def first(federation: Any) -> tuple[Link, Link]:
    """The guest's and the host's end of one link."""
    name = next(iter(federation.hosts))
    return federation.guest[name], federation.hosts[name]


def test_messages_of_every_host_arrive_once_and_in_order(federate: Federate) -> None:
    federation = federate()
    coroutines: dict[str, Any] = {
        name: send(link, [Message(Kind.VERDICT, i, 7, body={"of": name}) for i in range(40)])
        for name, link in federation.hosts.items()
    }
    coroutines["guest"] = receive(federation.guest, 40)
    ended = federation.run(coroutines)
    for name in federation.hosts:
        assert ended[name] == 40
        assert [(m.round, m.part, m.body) for m in ended["guest"][name]] == [
            (i, 7, {"of": name}) for i in range(40)
        ]


def test_tensors_arrive_bit_for_bit_in_both_directions(federate: Federate) -> None:
    federation = federate()
    odd = torch.tensor([[0.0, -0.0, 1e-45], [3.4028235e38, -1e-38, 1 / 3]])
    tensors = [odd, matrix(4, 6)[:, ::2], matrix(3, 4).T, matrix(1)]  # strided ones as well

    async def both(link: Link) -> list[Message]:
        for i, tensor in enumerate(tensors):
            await link.send(Message(Kind.DERIVATIVE, i, tensor=tensor))
        return [await link.receive() for _ in tensors]

    guest, host = first(federation)
    allow(guest)
    allow(host)
    ended = federation.run({"guest": both(guest), "host": both(host)})
    for arrived in ended.values():
        for i, (message, tensor) in enumerate(zip(arrived, tensors, strict=True)):
            assert (message.kind, message.round, message.body) == (Kind.DERIVATIVE, i, None)
            assert message.tensor.dtype == torch.float32
            assert torch.equal(message.tensor.view(torch.int32), tensor.clone().view(torch.int32))


def test_a_received_tensor_has_no_autograd_graph(federate: Federate) -> None:
    guest, host = first(federation := federate())
    allow(guest)
    tensor = matrix().requires_grad_() * 2
    ended = federation.run({"host": send(host, [activation(tensor)]), "guest": receive_one(guest)})
    assert not ended["guest"].tensor.requires_grad


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "airline", "contract": {"lr": 0.1, "rounds": None, "evaluation.target": 1e-300}},
        {"text": 'öß "quoted" \n 日本', "list": [1, [True, {"deep": -2}]], "big": 2**64},
    ],
    ids=["empty", "contract", "odd"],
)
def test_bodies_arrive_equal(federate: Federate, body: dict[str, Any]) -> None:
    guest, host = first(federation := federate())
    message = Message(Kind.HELLO, body=body)
    ended = federation.run({"host": send(host, [message]), "guest": receive_one(guest)})
    assert ended["guest"].body == body
    assert ended["guest"].tensor is None


def test_a_tensor_is_refused_before_tensors_are_allowed(federate: Federate) -> None:
    guest, host = first(federation := federate())
    ended = federation.run(
        {"host": send(host, [activation(matrix())]), "guest": receive_one(guest)}
    )
    assert type(ended["guest"]) is ProtocolError
    assert "ACTIVATION: not expected at this point" in str(ended["guest"])


def test_a_kind_of_tensor_that_was_not_allowed_is_refused(federate: Federate) -> None:
    guest, host = first(federation := federate())
    guest.allow({Kind.ACTIVATION: SPEC})
    message = Message(Kind.DERIVATIVE, tensor=matrix())
    ended = federation.run({"host": send(host, [message]), "guest": receive_one(guest)})
    assert type(ended["guest"]) is ProtocolError


@pytest.mark.parametrize(
    ("tensor", "spec"),
    [
        (matrix(4, 2), SPEC),
        (matrix(4, 4), SPEC),
        (matrix(5, 3), SPEC),
        (matrix(4, 3), TensorSpec(4, 3, torch.float64)),
    ],
    ids=["too narrow", "too wide", "too many rows", "wrong type"],
)
def test_a_tensor_beyond_the_contract_is_refused(
    federate: Federate, tensor: torch.Tensor, spec: TensorSpec
) -> None:
    guest, host = first(federation := federate())
    allow(guest, spec)
    ended = federation.run({"host": send(host, [activation(tensor)]), "guest": receive_one(guest)})
    assert type(ended["guest"]) is ShapeError
    assert str([*spec.__dict__.values()][1]) in str(ended["guest"])


@pytest.mark.parametrize(
    "tensor",
    [matrix().double(), matrix().half(), torch.ones(3), torch.ones(0, 3), torch.ones(1, 2, 3)],
    ids=["float64", "float16", "vector", "no rows", "three dimensions"],
)
def test_a_tensor_that_cannot_be_encoded_is_refused_at_the_sender(
    federate: Federate, tensor: torch.Tensor
) -> None:
    guest, host = first(federation := federate())
    allow(guest)
    ended = federation.run({"host": send(host, [activation(tensor)])})
    assert type(ended["host"]) is ShapeError
    ended = federation.run(
        {"host": send(host, [activation(matrix(), 5)]), "guest": receive_one(guest)}
    )
    assert ended["guest"].round == 5, "the refused message has no effect"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_inf_are_refused_at_the_sender_and_nothing_is_sent(
    federate: Federate, value: float
) -> None:
    guest, host = first(federation := federate())
    allow(guest)
    bad = matrix()
    bad[2, 1] = value
    ended = federation.run({"host": send(host, [activation(bad, 41)])})
    assert type(ended["host"]) is NonFiniteError
    assert "ACTIVATION of round 41" in str(ended["host"])
    assert host.traffic.sent == Traffic()
    ended = federation.run(
        {"host": send(host, [activation(matrix(), 42)]), "guest": receive_one(guest)}
    )
    assert ended["guest"].round == 42


def test_finite_values_whose_sum_overflows_pass(federate: Federate) -> None:
    guest, host = first(federation := federate())
    allow(guest)
    large = torch.full((4, 3), 3e38)
    ended = federation.run({"host": send(host, [activation(large)]), "guest": receive_one(guest)})
    assert torch.equal(ended["guest"].tensor, large)


def test_a_peers_failure_is_raised_with_its_reason_after_earlier_messages(
    federate: Federate,
) -> None:
    guest, host = first(federation := federate())
    messages = [Message(Kind.READY), Message(Kind.FAILURE, body={"reason": "DataError"})]

    async def listen() -> None:
        assert (await guest.receive()).kind is Kind.READY
        await guest.receive()

    ended = federation.run({"host": send(host, messages), "guest": listen()})
    assert type(ended["guest"]) is PeerFailed
    assert str(ended["guest"]) == f"{guest.peer} stopped: DataError"


@pytest.mark.parametrize(
    "body", [{"reason": "\x1b[2J\x07red\r\nherring \ud800 \u202e"}, {"reason": ["x" * 5000]}, {}]
)
def test_a_peers_reason_is_truncated_and_made_printable(
    federate: Federate, body: dict[str, Any]
) -> None:
    guest, host = first(federation := federate())
    message = Message(Kind.FAILURE, body=body)
    ended = federation.run({"host": send(host, [message]), "guest": receive_one(guest)})
    assert type(ended["guest"]) is PeerFailed
    assert str(ended["guest"]).isprintable()
    assert len(str(ended["guest"])) < 1100
    str(ended["guest"]).encode()


@pytest.mark.parametrize("closing", ["guest", "host"])
def test_messages_sent_before_closing_arrive_and_then_the_peer_is_lost(
    federate: Federate, closing: str
) -> None:
    ends = dict(zip(["guest", "host"], first(federation := federate()), strict=True))
    one, other = ends.pop(closing), next(iter(ends.values()))

    async def leave() -> None:
        await send(one, [Message(Kind.VERDICT, i, body={}) for i in range(5)])
        one.close()
        one.close()

    async def listen() -> list[int]:
        rounds = [(await other.receive()).round for _ in range(5)]
        with pytest.raises(PeerLost) as lost:
            await other.receive()
        assert "deadline_s" not in str(lost.value), "the close is detected, without a timeout"
        with pytest.raises(PeerLost) as again:
            await other.receive()
        assert "deadline_s" not in str(again.value), "a closed link stays closed"
        return rounds

    ended = federation.run({"one": leave(), "other": listen()})
    assert ended == {"one": None, "other": [0, 1, 2, 3, 4]}


def test_both_sides_count_the_same_bytes_by_purpose(federate: Federate) -> None:
    federation = federate()
    body = {"stop": False}
    of_body, of_tensor = HEADER.size + len(json.dumps(body)), HEADER.size + 4 * 3 * 4

    for link in [*federation.guest.values(), *federation.hosts.values()]:
        allow(link)

    async def run_host(link: Link) -> None:
        await link.send(Message(Kind.ACTIVATION, tensor=matrix()))
        await link.send(Message(Kind.TEST_ACTIVATION, tensor=matrix()))
        await link.send(Message(Kind.TEST_ACTIVATION, part=1, tensor=matrix()))
        for _ in range(3):
            await link.receive()
        await link.send(Message(Kind.READY))

    async def run_guest() -> None:
        for link in federation.guest.values():
            for _ in range(3):
                await link.receive()
            await link.send(Message(Kind.DERIVATIVE, tensor=matrix()))
            await link.send(Message(Kind.DERIVATIVE, 1, tensor=matrix()))
            await link.send(Message(Kind.VERDICT, body=body))
            await link.receive()

    coroutines = {name: run_host(link) for name, link in federation.hosts.items()}
    ended = federation.run({**coroutines, "guest": run_guest()})
    assert set(ended.values()) == {None}
    for name, link in federation.guest.items():
        to_guest = Traffic(
            training_bytes=of_tensor,
            evaluation_bytes=2 * of_tensor,
            control_bytes=HEADER.size + len("{}"),
            messages=4,
        )
        to_host = Traffic(training_bytes=2 * of_tensor, control_bytes=of_body, messages=3)
        assert link.traffic.received == federation.hosts[name].traffic.sent == to_guest
        assert link.traffic.sent == federation.hosts[name].traffic.received == to_host
        assert to_guest.total_bytes == 3 * of_tensor + HEADER.size + 2


def test_a_tensor_far_beyond_the_carriers_default_limit_passes(federate: Federate) -> None:
    guest, host = first(federation := federate())
    large = matrix(5 * 1024, 1024)  # 20 MiB; gRPC refuses messages beyond 4 MiB by default
    allow(guest, TensorSpec(*large.shape))
    ended = federation.run({"host": send(host, [activation(large)]), "guest": receive_one(guest)})
    assert torch.equal(ended["guest"].tensor, large)


def waits_forever(outcome: Any) -> bool:
    """In memory the coroutine waits forever; over a network it ends at the deadline."""
    if isinstance(outcome, PeerLost):
        return "1 s (deadline_s)" in str(outcome)
    return type(outcome).__name__ == "Waiting"


def test_a_wait_for_a_silent_peer_ends_at_the_deadline(federate: Federate) -> None:
    guest, _ = first(federation := federate(deadline_s=1))
    assert waits_forever(federation.run({"guest": receive_one(guest)})["guest"])


def test_a_fast_sender_is_slowed_down_and_nothing_is_lost(
    federate: Federate,
) -> None:
    guest, host = first(federation := federate(deadline_s=1))
    spec = TensorSpec(max_rows=256, width=1024)
    allow(guest, spec)
    tensor = matrix(spec.max_rows, spec.width)  # 1 MiB
    accepted = []

    async def outrun() -> None:
        for i in range(200):
            await host.send(activation(tensor, i))
            accepted.append(i)

    assert waits_forever(federation.run({"host": outrun()})["host"])
    # A carrier's flow control usually allows less. The limit is the buffer of unacknowledged
    # messages (1 MiB each), the receiver's queue, and one message in between.
    max_accepted = MAX_UNACKED_BYTES // tensor.nbytes + QUEUED_MESSAGES + 1
    assert len(accepted) <= max_accepted, "an unbounded buffer is an unbounded allocation"

    async def drain() -> list[int]:
        return [(await guest.receive()).round for _ in accepted]

    assert federation.run({"guest": drain()})["guest"] == accepted
