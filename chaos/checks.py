"""The invariants of every run with faults, and the errors that name a violation."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch

from celu.checkpoint.generations import Snapshot
from celu.engine.checkpointing import max_apart
from celu.errors import CeluError, CheckpointError, PeerFailed, PeerLost
from celu.events import Event, RoundDone, TrainingStarted
from celu.result import Result
from celu.transport.message import Message
from chaos.log_file import SimLogFile
from chaos.party_process import Party

# The errors that a party may stop with, and the faults that can cause them. Tampering with records
# is not among them: TLS detects it, and the link reconnects.
_DISK = {"full disk", "disk error", "failed sync", "bit rot"}
_FOLDER = {"lost checkpoints", "damaged log"}
_ABSENCE = {"kill", "power cut", "blackout", "pause", "partition", "delay"} | _DISK | _FOLDER
CAUSES: dict[type[CeluError], set[str]] = {
    CheckpointError: _DISK | {"lost checkpoints"},
    PeerLost: _ABSENCE,
    PeerFailed: _ABSENCE,
}
FinalState = tuple[dict[str, torch.Tensor], dict[str, Any]]  # tensors and other facts


class InvariantViolated(Exception):
    """A run violated an invariant."""


class DeliveryCheck:
    """Every message is delivered once, in order and unchanged: a `MessageObserver`."""

    def __init__(self) -> None:
        self._sent: dict[str, list[Message]] = {}
        self._num_delivered: Counter[str] = Counter()

    def on_sent(self, token: str, message: Message) -> None:
        """See `MessageObserver`."""
        self._sent.setdefault(token, []).append(message)

    def on_delivered(self, token: str, message: Message) -> None:
        """See `MessageObserver`; raises InvariantViolated."""
        sent, number = self._sent.get(token, []), self._num_delivered[token]
        self._num_delivered[token] += 1
        if number >= len(sent):
            raise InvariantViolated(f"message {number} was delivered, but only {len(sent)} sent")
        if _header(sent[number]) != _header(message) or not _same_tensor(sent[number], message):
            raise InvariantViolated(
                f"message {number}: sent {_header(sent[number])}, delivered {_header(message)}"
            )


def _header(message: Message) -> tuple[str, int, int]:
    return message.kind.name, message.round, message.part


def _same_tensor(a: Message, b: Message) -> bool:
    if a.tensor is None or b.tensor is None:
        return a.tensor is b.tensor
    return torch.equal(a.tensor, b.tensor)


class RoundCheck:
    """In each session a party applies every round once and in order."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def on_event(self, party: str, event: Event) -> None:
        """Check an event of a party; raises InvariantViolated."""
        if isinstance(event, TrainingStarted):
            self._last[party] = event.round
        elif isinstance(event, RoundDone):
            last, self._last[party] = self._last[party], event.round
            if event.round != last + 1:
                raise InvariantViolated(f"{party} applied round {event.round} after round {last}")


def check_error(party: str, error: CeluError, faults: Counter[str]) -> None:
    """Raise InvariantViolated for an error that none of these faults can have caused."""
    causes = CAUSES.get(type(error), set())
    if not causes & faults.keys():
        raise InvariantViolated(
            f"{party} stopped with {type(error).__name__} ({error}), which none of "
            f"{sorted(faults)} explains"
        )
    is_refusal = f"{party} has " in str(error) or "cannot restart from round" in str(error)
    if isinstance(error, CheckpointError) and not _DISK & faults.keys() and not is_refusal:
        raise InvariantViolated(
            f"{party} lost checkpoints, and did not say who holds what: {error}"
        )


def check_log(party: Party) -> None:
    """Raise InvariantViolated if a party's log holds a line that is not an event."""
    for number, line in enumerate(SimLogFile(party.disk).lines(), start=1):
        try:
            is_event = json.loads(line).keys() >= {"t", "event"}
        except (ValueError, AttributeError):
            is_event = False
        if not is_event:
            raise InvariantViolated(f"{party.name} left line {number} of its log damaged")


def check_retained(party: Party) -> None:
    """Raise InvariantViolated if a party deleted its newest checkpoint before passing it."""
    newest, found = party.durable.newest, party.checkpoints().rounds_on_disk()
    if newest > 0 and newest not in found:
        raise InvariantViolated(
            f"{party.name} deleted its newest checkpoint, of round {newest}; it has {found}"
        )


def check_repeated(party: Party, event: Event) -> None:
    """Raise InvariantViolated if a party repeats too many checkpoints without its operator."""
    if isinstance(event, TrainingStarted):
        repeated = [r for r in party.checkpoints().superseded_rounds() if r > event.round]
        if len(repeated) > max_apart(party.scenario.job):
            raise InvariantViolated(
                f"{party.name} starts from round {event.round} and repeats {repeated} without "
                "a decision of its operator"
            )


def check_durable(party: Party) -> None:
    """Raise InvariantViolated if a party lost a checkpoint that was durable."""
    durable, found = party.durable.round, party.checkpoints().available_rounds()
    if durable not in found:
        raise InvariantViolated(
            f"{party.name} lost the checkpoint of round {durable}, and only has {found}"
        )


def read_final_state(party: Party, result: Result) -> FinalState:
    """The last checkpoint and the result of a party, without times and byte counts."""
    checkpoints = party.checkpoints()
    snapshot: Snapshot = checkpoints.load(result.rounds)
    state = dict(snapshot.state)
    evaluations = [_without_times(e) for e in state.pop("record")["evaluations"]]
    facts = {
        **state,
        "evaluations": evaluations,
        "result": [
            result.rounds,
            result.local_steps,
            result.bubbles,
            [_without_times(e) for e in result.evaluations],
        ],
    }
    return snapshot.tensors, facts


def check_final_state(party: str, state: FinalState, expected: FinalState) -> None:
    """Raise InvariantViolated unless a party ended with the bits of the run without faults."""
    (tensors, facts), (expected_tensors, expected_facts) = state, expected
    if facts != expected_facts:
        names = [name for name in expected_facts if facts.get(name) != expected_facts[name]]
        raise InvariantViolated(f"{party} ended with different values of {', '.join(names)}")
    if tensors.keys() != expected_tensors.keys():
        raise InvariantViolated(f"{party} ended with a different set of tensors")
    differing = [name for name in tensors if not torch.equal(tensors[name], expected_tensors[name])]
    if differing:
        raise InvariantViolated(f"{party} ended with different bits in {', '.join(differing)}")


def _without_times(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in evaluation.items() if k in ("round", "loss", "rmse", "auc")}
