"""The round from which the parties resume: the newest that all of them have a checkpoint of.

Each party's HELLO names the run of its folder and the rounds it can resume from. The guest chooses
a round and sends it in READY. Every party checks that round itself. The session is refused if the
checkpoints belong to different runs, or if a party would repeat more checkpoints than parties that
were stopped at different moments do: then somebody's checkpoints were lost, and a person decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celu.checkpoint.identity import is_run_id, new_run_id
from celu.errors import CheckpointError, ProtocolError

_MAX_ROUNDS = 256  # that a HELLO may list
_MAX_LISTED = 8  # rounds in an error message
_LAST_ROUND = 10**15


@dataclass(frozen=True)
class Inventory:
    """The run of a party's folder and the rounds it can resume from, ascending from 0.

    `superseded` are rounds that the party was already asked to repeat and has not reached again.
    They are not sent: they only count in `num_repeated`, so that several small steps back are
    refused like one large step.
    """

    run: str | None = None
    rounds: tuple[int, ...] = (0,)
    superseded: tuple[int, ...] = ()

    def num_repeated(self, round_: int) -> int:
        """The number of this party's checkpoints that are repeated if it resumes here."""
        return sum(r > round_ for r in {*self.rounds, *self.superseded})

    def to_body(self) -> dict[str, Any]:
        """The fields of a HELLO; of a long list, the newest rounds."""
        return {"run": self.run, "held": list(self.rounds[-_MAX_ROUNDS:])}

    @staticmethod
    def from_body(peer: str, body: Mapping[str, Any]) -> Inventory:
        """Read a peer's HELLO; raises ProtocolError."""
        run, rounds = body.get("run"), body.get("held")
        is_valid = (
            (run is None or is_run_id(run))
            and isinstance(rounds, list)
            and len(rounds) <= _MAX_ROUNDS
            and all(_is_round(round_) for round_ in rounds)
        )
        if not is_valid:
            raise ProtocolError(
                f"HELLO of {peer}: expected its run and the rounds it can resume from"
            )
        assert isinstance(rounds, list)
        return Inventory(run, tuple(sorted({0, *rounds})))


@dataclass(frozen=True)
class Agreement:
    """The run that all parties belong to, and the round from which they resume."""

    run: str
    round: int

    def to_body(self) -> dict[str, Any]:
        """The fields of the guest's READY."""
        return {"run": self.run, "from": self.round}

    @staticmethod
    def from_body(
        guest: str,
        body: Mapping[str, Any] | None,
        name: str,
        inventories: Mapping[str, Inventory],
        max_repeated: int,
    ) -> Agreement:
        """Read the guest's READY at the host `name`, whose inventory is among these.

        Raises ProtocolError if we cannot resume from that round, CheckpointError if we would
        repeat more than `max_repeated` checkpoints.
        """
        own = inventories[name]
        run, round_ = (body or {}).get("run"), (body or {}).get("from")
        if not is_run_id(run) or not _is_round(round_):
            raise ProtocolError(f"READY of {guest}: expected a run and the round to resume from")
        assert isinstance(run, str) and isinstance(round_, int)
        if round_ not in own.rounds or (own.rounds[-1] > 0 and run != own.run):
            raise ProtocolError(
                f"READY of {guest}: expected a round of our run that we have a checkpoint of; "
                f"got round {round_} of {'our' if run == own.run else 'another'} run"
            )
        _check_repeated(round_, inventories, max_repeated)
        return Agreement(run, round_)


def agree(guest: str, inventories: Mapping[str, Inventory], max_repeated: int) -> Agreement:
    """Choose the newest round that every party has.

    Raises CheckpointError if their runs differ, or if a party would repeat more than
    `max_repeated` of its checkpoints.
    """
    runs = {inventory.run for inventory in inventories.values()}
    if any(inventory.rounds[-1] > 0 for inventory in inventories.values()) and len(runs) > 1:
        found = "; ".join(f"{name} {_describe(inv)}" for name, inv in inventories.items())
        raise CheckpointError(
            f"the parties' run folders belong to different runs: {found}. Restore the folder that "
            "was lost or swapped, or start a new run with another --out at all parties",
            shared=True,
        )
    common = set.intersection(*(set(inventory.rounds) for inventory in inventories.values()))
    _check_repeated(max(common), inventories, max_repeated)
    return Agreement(inventories[guest].run or new_run_id(), max(common))


def _check_repeated(round_: int, inventories: Mapping[str, Inventory], max_repeated: int) -> None:
    if all(inv.num_repeated(round_) <= max_repeated for inv in inventories.values()):
        return
    found = "; ".join(f"{name} has {_checkpoints(inv)}" for name, inv in inventories.items())
    raise CheckpointError(
        f"resuming from round {round_} would repeat more than {max_repeated} checkpoints, as if a "
        f"party had lost some: {found}. Nothing was changed. Restore the checkpoints/ folder that "
        "was lost, or, to train the later rounds again, start all parties with "
        f"--restart-from {round_}",
        shared=True,
    )


def _checkpoints(inventory: Inventory) -> str:
    rounds = [str(round_) for round_ in inventory.rounds if round_ > 0]
    if not rounds:
        return "no checkpoint"
    more = "... " if len(rounds) > _MAX_LISTED else ""
    return f"checkpoints of rounds {more}{', '.join(rounds[-_MAX_LISTED:])}"


def _describe(inventory: Inventory) -> str:
    if inventory.run is None:
        return "has no run"
    return f"has run {inventory.run[:8]}, round {inventory.rounds[-1]}"


def _is_round(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LAST_ROUND
