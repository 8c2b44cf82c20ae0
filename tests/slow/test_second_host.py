"""A malicious second host, over sockets and TLS: errors name it, and the first is not harmed."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

import celu
from celu.certs import make_authority, make_party
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import InlineWriter
from celu.errors import (
    AlignmentError,
    CeluError,
    NonFiniteError,
    PeerFailed,
    PeerLost,
    ProtocolError,
    ShapeError,
)
from celu.events import ignore
from celu.session import guest_session, host_session
from celu.transport import stream
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.link import Link, run_blocking
from celu.transport.message import Kind, Message
from checkpoint.disks import QuickDisk
from federation import Federation, assert_same_bits, federation
from psi.parties import Wrapped

WAIT_S = 600.0
BAD_ROUND = 5
NAMES = ("guest", "first", "second")
Tamper = Callable[[Message], Message | None]


def make_federation() -> Federation:
    return federation(
        hosts={"first": 6, "second": 4}, rounds=8, checkpoint={"every": 2}, codec="fp16"
    )


@dataclass
class Outcome:
    """What each party raised, if anything."""

    errors: dict[str, BaseException] = field(default_factory=dict)


def run(
    fed: Federation, folder: Path, tamper: Tamper | None = None, deadline_s: float = WAIT_S
) -> Outcome:
    """All parties over TLS; the second host's messages pass through `tamper`."""
    for name in NAMES:
        if not (folder / name).exists():
            make_authority(folder / name, name)
            make_party(folder / name, name)

    def keys(name: str, peers: tuple[str, ...]) -> tuple[Path, Path, dict[str, Path]]:
        own = folder / name
        authorities = {peer: folder / peer / "ca.pem" for peer in peers}
        return own / f"{name}.pem", own / f"{name}.key", authorities

    ports: queue.Queue[int] = queue.Queue()
    outcome = Outcome()
    over = threading.Event()

    def checkpoints(name: str) -> Checkpoints:
        return Checkpoints(folder / name / "run", QuickDisk(), InlineWriter())

    def host(name: str, port: int) -> None:
        there = Endpoint(
            name,
            connect={"guest": Route(f"127.0.0.1:{port}")},
            keys=keys(name, ("guest",)),
            connect_s=WAIT_S,
            deadline_s=WAIT_S,
            outage_s=1.0,
        )
        try:
            with open_links(there) as links:
                link: Link = links["guest"]
                if name == "second" and tamper is not None:
                    link = Wrapped(link, tamper)
                session = host_session(
                    name, fed.hosts[name], fed.job, link, ignore, checkpoints=checkpoints(name)
                )
                run_blocking(session)
        except BaseException as error:
            outcome.errors[name] = error

    def guest() -> None:
        here = Endpoint(
            "guest",
            "127.0.0.1:0",
            ("first", "second"),
            keys=keys("guest", ("first", "second")),
            connect_s=WAIT_S,
            deadline_s=deadline_s,
            outage_s=1.0,
        )
        try:
            with open_links(here, ports.put) as links:
                session = guest_session(
                    "guest", fed.guest, fed.job, links, ignore, checkpoints=checkpoints("guest")
                )
                run_blocking(session)
        except BaseException as error:
            outcome.errors["guest"] = error
        over.set()

    threads = [threading.Thread(target=guest)]
    threads[0].start()
    port = ports.get(timeout=WAIT_S)
    threads += [threading.Thread(target=host, args=(name, port)) for name in NAMES[1:]]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return outcome


def at_round(change: Tamper) -> Tamper:
    """Tamper with the activation of one round."""

    def tamper(message: Message) -> Message | None:
        hit = message.kind is Kind.ACTIVATION and message.round == BAD_ROUND
        return change(message) if hit else message

    return tamper


def shorter(message: Message) -> Message:
    assert message.tensor is not None
    return replace(message, tensor=message.tensor[:-1])


def larger(message: Message) -> Message:
    return replace(message, tensor=torch.zeros(4096, 1, dtype=torch.uint8))


def not_finite(message: Message) -> Message:
    assert message.tensor is not None
    nan = torch.tensor([0x00, 0x7E], dtype=torch.uint8)  # in float16
    return replace(message, tensor=nan.repeat(len(message.tensor) // 2).reshape(-1, 1))


def other_round(message: Message) -> Message:
    return replace(message, round=message.round - 1)


def other_kind(message: Message) -> Message:
    return replace(message, kind=Kind.TEST_ACTIVATION)


def other_rows(message: Message) -> Message:
    return replace(message, row_digest=bytes(16))


def silent(message: Message) -> None:
    return None


def failure(message: Message) -> Message:
    reason = "first stopped: ask first for its rows \x1b[2J"
    return Message(Kind.FAILURE, body={"reason": reason})


def for_the_first(message: Message) -> Message:
    return Message(Kind.VERDICT, message.round, body={"stop": True})


def claims_the_other_name(message: Message) -> Message:
    if message.kind is Kind.HELLO:
        return replace(message, body={**(message.body or {}), "name": "first"})
    return message


@pytest.fixture(autouse=True)
def quick_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)


@pytest.fixture(scope="module")
def whole() -> dict[str, torch.Tensor]:
    """The weights of an honest run."""
    fed = make_federation()
    celu.simulate(fed.job, fed.guest, fed.hosts)
    return fed.weights()


CASES: dict[str, tuple[Tamper, type[CeluError], str, float]] = {
    "fewer bytes": (at_round(shorter), ShapeError, "ACTIVATION of round 5 from second", WAIT_S),
    "more bytes": (at_round(larger), ShapeError, "from second: ACTIVATION", WAIT_S),
    "NaN": (at_round(not_finite), NonFiniteError, "ACTIVATION from second of round 5", WAIT_S),
    "another round": (at_round(other_round), ProtocolError, "round 4 part 0 from second", WAIT_S),
    "another kind": (at_round(other_kind), ProtocolError, "TEST_ACTIVATION .* from second", WAIT_S),
    "other rows": (at_round(other_rows), AlignmentError, "round 5 from second", WAIT_S),
    "silence": (at_round(silent), PeerLost, "second", 5.0),
    "a failure": (at_round(failure), PeerFailed, r"^second stopped: first stopped.*\?\[2J", WAIT_S),
    "a verdict": (at_round(for_the_first), ProtocolError, "VERDICT .* from second", WAIT_S),
    "another name": (claims_the_other_name, ProtocolError, "with the name second", WAIT_S),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_second_host_and_the_run_resumes_without_harm(
    tmp_path: Path, whole: dict[str, torch.Tensor], case: str
) -> None:
    tamper, kind, text, deadline_s = CASES[case]
    before = make_federation()
    outcome = run(before, tmp_path, tamper, deadline_s)
    error = outcome.errors["guest"]
    assert type(error) is kind
    assert re.search(text, str(error))
    # The first host learns that the guest stopped, and its checkpoints are those of its rounds.
    assert isinstance(outcome.errors["first"], PeerFailed)
    assert str(outcome.errors["first"]).startswith("guest stopped")
    held = Checkpoints(tmp_path / "first" / "run", QuickDisk()).available_rounds()
    assert held == ([0] if case == "another name" else [0, 2, 4])
    # With an honest second host, the run resumes and ends with the bits of an honest run.
    again = make_federation()
    assert not run(again, tmp_path).errors
    assert_same_bits(again.weights(), whole)
