"""What crosses to a second host does not depend on the first one, except through dZ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import celu
from celu.errors import ContractMismatch, PeerFailed
from celu.events import ignore
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links, run_together
from celu.transport.message import Kind, Message
from federation import Federation, federation
from psi.parties import Wrapped


def make_federation(**job: Any) -> Federation:
    return federation(hosts={"first": 6, "second": 4}, rounds=10, **job)


def messages_to_second(fed: Federation) -> list[Message]:
    """All messages that the guest sends to the second host in a run."""
    sent: list[Message] = []

    def record(message: Message) -> Message:
        sent.append(message)
        return message

    pairs = {name: memory_links("guest", name) for name in fed.hosts}
    programs: dict[str, Any] = {
        name: host_session(name, host, fed.job, pairs[name][1], ignore)
        for name, host in fed.hosts.items()
    }
    links: dict[str, Any] = {"first": pairs["first"][0]}
    links["second"] = Wrapped(pairs["second"][0], record)
    programs["guest"] = guest_session("guest", fed.guest, fed.job, links, ignore)
    run_together(programs, [end for pair in pairs.values() for end in pair])
    return sent


def without_numbers(message: Message) -> tuple[Any, ...]:
    """A message without the elements of its tensor, digests of weights, and what is random."""
    tensor = message.tensor
    shape = None if tensor is None else (tensor.dtype, tuple(tensor.shape))
    dropped = ("run", "weights", "trained_at")
    body = {key: value for key, value in (message.body or {}).items() if key not in dropped}
    return message.kind, message.round, message.part, body, message.row_digest, shape


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_only_derivatives_and_digests_of_weights_depend_on_the_first_host(codec: str) -> None:
    fed, other = make_federation(codec=codec), make_federation(codec=codec)
    first = other.hosts["first"]
    inputs = {name: torch.flip(tensor, (0,)) for name, tensor in first.train.inputs.items()}
    changed = celu.Dataset(inputs, None, first.train.sizes)
    other.hosts["first"] = replace(first, train=changed, test=changed)
    one, two = messages_to_second(fed), messages_to_second(other)
    assert list(map(without_numbers, one)) == list(map(without_numbers, two))
    differing = {a.kind for a, b in zip(one, two, strict=True) if not _same(a.tensor, b.tensor)}
    assert differing == {Kind.DERIVATIVE}
    digests = [set((message.body or {}).get("weights", {})) for message in one]
    assert [names for names in digests if names] == [{"guest", "first", "second"}]


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))


def test_how_the_contract_of_one_host_differs_is_not_sent_to_another() -> None:
    fed = make_federation()
    first = fed.hosts["first"]
    fewer = celu.Dataset(
        {name: tensor[:177] for name, tensor in first.train.inputs.items()}, None, first.train.sizes
    )
    fed.hosts["first"] = replace(first, train=fewer)
    pairs = {name: memory_links("guest", name) for name in fed.hosts}
    links = {name: pair[0] for name, pair in pairs.items()}
    second = host_session("second", fed.hosts["second"], fed.job, pairs["second"][1], ignore)
    first_session = host_session("first", fed.hosts["first"], fed.job, pairs["first"][1], ignore)
    guest = guest_session("guest", fed.guest, fed.job, links, ignore)
    for session in (second, first_session, guest, second):
        try:
            session.send(None)
        except ContractMismatch as error:
            assert "177" in str(error)
        except PeerFailed as error:
            assert session is second
            assert str(error) == "guest stopped: the contract of first differs"
            return
    raise AssertionError("the second host was not told")
