"""Parties that align in one thread, some of which are killed or misbehave."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celu.data.tags import Tags, ascending, commitment, make_tags
from celu.events import Event
from celu.psi.protocol import AlignmentResources, AlignmentResult, align_guest, align_host
from celu.psi.workers import Workers
from celu.transport.link import Link
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays

TERMS = {"split.seed": 3, "split.test": 0.2}
Ids = Iterable[int]


class Killed(BaseException):
    """Like SIGKILL: nothing is reported or cleaned up."""


class Wrapped:
    """A link that passes every message through functions, which may change it or raise."""

    def __init__(
        self,
        link: Link,
        send: Callable[[Message], Message | None] = lambda message: message,
        receive: Callable[[Message], Message] = lambda message: message,
    ) -> None:
        self._link, self._on_send, self._on_receive = link, send, receive
        self.peer = link.peer
        self.traffic: TrafficBothWays = link.traffic

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        self._link.allow(specs)

    async def send(self, message: Message) -> None:
        changed = self._on_send(message)
        if changed is not None:
            await self._link.send(changed)

    async def receive(self) -> Message:
        return self._on_receive(await self._link.receive())

    def close(self) -> None:
        self._link.close()


def killed_at(number: int) -> Callable[[Message], Message]:
    """Kill the party when it sends its message of this number."""
    count = 0

    def send(message: Message) -> Message:
        nonlocal count
        count += 1
        if count == number:
            raise Killed
        return message

    return send


def tags_of(ids: Ids) -> Tags:
    tags = make_tags((f"customer {i}" for i in ids), seed=3)
    return tags[ascending(tags)]


@dataclass
class Party:
    """One party's rows, and the behaviour of its link."""

    ids: Ids
    terms: dict[str, Any] = field(default_factory=lambda: dict(TERMS))
    wrap: Callable[[Link], Link] = lambda link: link
    workers: Workers = field(default_factory=Workers)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    chunk_rows: int = 8

    def emit(self, event: Event) -> None:
        self.events.append((event.event, event.fields))


Outcomes = dict[str, AlignmentResult | BaseException]


def align(folder: Path, guest: Party, **hosts: Party) -> Outcomes:
    """Run an alignment; each party's result or error."""
    pairs = {name: memory_links("guest", name) for name in hosts}

    def resources(name: str, party: Party) -> AlignmentResources:
        return AlignmentResources(folder / name, party.workers, party.chunk_rows)

    to_hosts = {name: guest.wrap(pair[0]) for name, pair in pairs.items()}
    coroutines: dict[str, Coroutine[Any, Any, AlignmentResult]] = {
        "guest": align_guest(
            "guest",
            to_hosts,
            tags_of(guest.ids),
            guest.terms,
            resources("guest", guest),
            guest.emit,
        )
    }
    links: dict[str, list[Link]] = {"guest": list(to_hosts.values())}
    for name, host in hosts.items():
        link = host.wrap(pairs[name][1])
        links[name] = [link]
        coroutines[name] = align_host(
            name, link, tags_of(host.ids), host.terms, resources(name, host), host.emit
        )
    return run_to_completion(coroutines, links)


def run_to_completion(
    coroutines: Mapping[str, Coroutine[Any, Any, Any]], links: Mapping[str, list[Link]]
) -> Outcomes:
    """Run all parties until each returns or raises; the links of one that raises are closed."""
    outcomes: Outcomes = {}
    while len(outcomes) < len(coroutines):
        before = _progress(links), len(outcomes)
        for name, coroutine in coroutines.items():
            if name in outcomes:
                continue
            try:
                coroutine.send(None)
            except StopIteration as done:
                outcomes[name] = done.value
            except BaseException as error:
                outcomes[name] = error
                for link in links[name]:
                    link.close()
        assert (_progress(links), len(outcomes)) != before, "deadlock: no party makes progress"
    return outcomes


def _progress(links: Mapping[str, list[Link]]) -> int:
    traffic = [link.traffic for ends in links.values() for link in ends]
    return sum(t.sent.messages + t.received.messages for t in traffic)


def assert_aligned(outcomes: Outcomes, parties: Mapping[str, Party]) -> None:
    """Assert that every party has exactly the common rows, in the same order."""
    expected = tags_of(set.intersection(*(set(party.ids) for party in parties.values())))
    for name, party in parties.items():
        outcome = outcomes[name]
        assert isinstance(outcome, AlignmentResult), (name, outcome)
        assert (tags_of(party.ids)[outcome.rows] == expected).all(), name
        assert len(outcome.rows) == len(expected)
        assert outcome.commitment == commitment(expected)
