"""What must hold in every run, whatever goes wrong, and how a violation is told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from celu.checkpoint.generations import Snapshot
from celu.errors import CeluError, CheckpointError, PeerFailed, PeerLost
from celu.events import Event, RoundDone, TrainingStarted
from celu.session import Result
from celu.transport.message import Message
from chaos.life import Party

# Errors that a party may stop with, and the faults without which it has no reason to. Tampering
# with records is not among them: TLS notices, and the connection is made anew.
_DISK = {"full disk", "disk error", "failing sync", "rot"}
_ABSENCE = {"kill", "power cut", "blackout", "pause", "partition", "delay"} | _DISK
CAUSES: dict[type[CeluError], set[str]] = {
    CheckpointError: _DISK,
    PeerLost: _ABSENCE,
    PeerFailed: _ABSENCE,
}
Kept = tuple[dict[str, torch.Tensor], dict[str, Any]]


class Violated(Exception):
    """A run broke a promise."""


class Ledger:
    """Every message is delivered once, in order and as it was given: a `Watcher`."""

    def __init__(self) -> None:
        self._given: dict[str, list[Message]] = {}
        self._delivered: Counter[str] = Counter()

    def given(self, token: str, message: Message) -> None:
        """See `Watcher`."""
        self._given.setdefault(token, []).append(message)

    def delivered(self, token: str, message: Message) -> None:
        """See `Watcher`; raises Violated."""
        given, number = self._given.get(token, []), self._delivered[token]
        self._delivered[token] += 1
        if number >= len(given):
            raise Violated(f"message {number} was delivered, but only {len(given)} were given")
        if _what(given[number]) != _what(message) or not _same_tensor(given[number], message):
            raise Violated(
                f"message {number}: given {_what(given[number])}, delivered {_what(message)}"
            )


def _what(message: Message) -> tuple[str, int, int]:
    return message.kind.name, message.round, message.part


def _same_tensor(a: Message, b: Message) -> bool:
    if a.tensor is None or b.tensor is None:
        return a.tensor is b.tensor
    return torch.equal(a.tensor, b.tensor)


class Rounds:
    """In each conversation a party applies every round once, in order, from where it began."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def see(self, party: str, event: Event) -> None:
        """An event of a party; raises Violated."""
        if isinstance(event, TrainingStarted):
            self._last[party] = event.round
        elif isinstance(event, RoundDone):
            last, self._last[party] = self._last[party], event.round
            if event.round != last + 1:
                raise Violated(f"{party} applied round {event.round} after round {last}")


def check_error(party: str, error: CeluError, struck: Counter[str]) -> None:
    """Raise Violated for an error that nothing that struck can have caused."""
    causes = CAUSES.get(type(error), set())
    if not causes & struck.keys():
        raise Violated(
            f"{party} stopped with {type(error).__name__} ({error}), which none of "
            f"{sorted(struck)} explains"
        )


def check_durable(party: Party) -> None:
    """Raise Violated unless a party holds what it was told is kept, whatever has ended it."""
    promised, held = party.promised.round, party.checkpoints().available_rounds()
    if promised not in held:
        raise Violated(f"{party.name} kept round {promised}, and now holds {held} alone")


def kept_of(party: Party, result: Result) -> Kept:
    """What a party that is done has on its disk, without times and byte counts."""
    checkpoints = party.checkpoints()
    snapshot: Snapshot = checkpoints.load(result.rounds)
    state = dict(snapshot.state)
    evaluations = [_without_times(one) for one in state.pop("record")["evaluations"]]
    facts = {
        **state,
        "evaluations": evaluations,
        "result": [
            result.rounds,
            result.local_steps,
            result.bubbles,
            [_without_times(one) for one in result.evaluations],
        ],
    }
    return snapshot.tensors, facts


def check_kept(party: str, kept: Kept, reference: Kept) -> None:
    """Raise Violated unless a party ended with the bits of the undisturbed run."""
    (tensors, facts), (due_tensors, due_facts) = kept, reference
    if facts != due_facts:
        names = [name for name in due_facts if facts.get(name) != due_facts[name]]
        raise Violated(f"{party} ended with other facts: {', '.join(names)}")
    if tensors.keys() != due_tensors.keys():
        raise Violated(f"{party} ended with other tensors than it should have")
    differing = [name for name in tensors if not torch.equal(tensors[name], due_tensors[name])]
    if differing:
        raise Violated(f"{party} ended with other bits in {', '.join(differing)}")


def _without_times(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {key: evaluation[key] for key in ("round", "loss", "rmse")}
