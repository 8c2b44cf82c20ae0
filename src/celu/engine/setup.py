"""What a session starts with: the party checked, the schedule, the contract, the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from celu.checkpoint.agreement import Inventory
from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.engine.extension import (
    TOTAL_ROUNDS,
    recorded_rounds,
    shorter_rounds,
    usable_rounds,
)
from celu.engine.held_out import HeldOutMetrics, what_metric_decides
from celu.engine.lazy_modules import initialize_lazy_modules
from celu.engine.noise import check_noise
from celu.engine.schedule import Schedule
from celu.engine.twin import check_label_privacy
from celu.errors import CheckpointError, ConfigError, ContractMismatch, DataError
from celu.events import Callback, CheckpointDamaged
from celu.handshake import contract_differences
from celu.models.fit_labels import check_both_classes
from celu.models.residual import ResidualTop, ResidualTower
from celu.party import Guest, Host
from celu.transport.wire import VERSION


@dataclass(frozen=True)
class RunTerms:
    """What the parties of a run agree on besides the job.

    `total_rounds` is the length of a run that was extended, `start` the name of the model whose
    weights it starts from.
    """

    total_rounds: int | None = None
    start: str | None = None

    def contract(self) -> dict[str, Any]:
        """Their fields of the contract; none for a run without."""
        fields = {TOTAL_ROUNDS: self.total_rounds, "start_model": self.start}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class RunSetup:
    """A party's side of a session, before it talks to its peers."""

    job: Job  # with the rounds that were added
    schedule: Schedule
    contract: dict[str, Any]
    planned_rounds: int  # without them
    members: int | None = None  # of the party's built-in modules

    @staticmethod
    def of(
        name: str,
        party: Guest | Host,
        job: Job,
        terms: RunTerms | None,
        checkpoints: Checkpoints | None,
    ) -> RunSetup:
        """The setup of a run, perhaps one that was extended earlier; raises as `check_party`."""
        planned = check_party(name, party, job).num_rounds
        terms = terms or RunTerms()
        if terms.start is not None and job.privacy.label_epsilon is not None:
            raise ConfigError(
                "start: expected none with privacy.label_epsilon: the weights of an earlier model "
                "learned from true labels, and hosts would see what follows from them; remove one"
            )
        if terms.total_rounds is None:
            terms = replace(terms, total_rounds=recorded_rounds(checkpoints))
        contract = contract_of(job, party, terms)
        if terms.total_rounds is not None:
            job = job.model_copy(update={"rounds": terms.total_rounds, "epochs": None})
        schedule = check_party(name, party, job)
        return RunSetup(job, schedule, contract, planned, members_of(party))

    def inventory(self, checkpoints: Checkpoints, emit: Callback) -> Inventory:
        """Our checkpoints; raises CheckpointError if the run in the folder has another contract."""
        found = inventory_of(self.contract, checkpoints, emit)
        rounds = usable_rounds(
            self.job, self.planned_rounds, self.schedule, checkpoints, found.rounds
        )
        return replace(found, rounds=tuple(rounds))

    def shorter_rounds(self, checkpoints: Checkpoints | None, round_: int) -> int | None:
        """The length of the run when this checkpoint was written, if the run was extended since."""
        return shorter_rounds(self.planned_rounds, self.schedule, checkpoints, round_)


def check_party(name: str, party: Guest | Host, job: Job) -> Schedule:
    """What a run needs of a party, as far as it is known before the peers are: its schedule.

    Raises DataError for too few rows, missing labels and weights that cannot be used, ConfigError
    for metrics that do not fit the loss, or for patience without validation rows.
    """
    schedule = _schedule(name, job, party)
    if job.evaluation.patience is not None and not schedule.validates:
        raise ConfigError(
            f"evaluation.patience: expected validation rows at {name}, got none; set "
            "split.validation in schema.toml and prepare the rows again, pass validation rows in "
            "Python, or remove patience"
        )
    check_noise(party, job)
    initialize_lazy_modules(name, party, job)
    parts = {"training": party.train, "validation": party.validation, "test": party.test}
    if isinstance(party, Host):
        if any(rows is not None and rows.weights is not None for rows in parts.values()):
            raise DataError(
                f"{name}: expected weights of rows at the guest only, which has the loss"
            )
        return schedule
    used = {"validation": schedule.validation_rows, "test": schedule.test_rows}
    for part, rows in parts.items():
        if rows is None:
            continue
        if rows.labels is None:
            raise DataError(f"{name}: expected labels in the guest's {part} rows, got none")
        weights = None if rows.weights is None else rows.weights[: used.get(part)]
        if weights is not None and len(weights) and not bool(weights.any()):
            raise DataError(f"{name}: weights: expected some above 0 in {part} rows, got only 0")
    if job.privacy.label_epsilon is not None and job.hosts:
        decides = schedule.validates or job.evaluation.target is not None
        check_label_privacy(party, job, decides=decides)
    evaluated = parts[schedule.evaluated]
    assert evaluated is not None and evaluated.labels is not None
    labels = evaluated.labels[: used[schedule.evaluated]]
    metrics = HeldOutMetrics(party.loss, party.metrics, job.evaluation.metric)
    metrics.check(
        what_metric_decides(job.evaluation, validates=schedule.validates),
        party.label_map.codes(labels) if len(labels) else None,
    )
    for part, number in used.items():
        rows = parts[part]
        if rows is not None and rows.labels is not None:
            labels = rows.labels[:number]
            check_both_classes(party.label_map, party.loss, part, labels, job.evaluation.metric)
    members_of(party)
    if party.bottom is None and not job.hosts:
        raise DataError(f"{name}: expected a bottom model or at least one host, got neither")
    return schedule


def members_of(party: Guest | Host) -> int | None:
    """How many members a party's built-in modules make or join; None for other modules.

    Raises ConfigError if the guest's two modules differ.
    """
    bottom = party.bottom.members if isinstance(party.bottom, ResidualTower) else None
    if isinstance(party, Host) or not isinstance(party.top, ResidualTop):
        return bottom
    top = party.top.members
    if bottom not in (None, top):
        raise ConfigError(
            f"members: expected the same number in bottom and top, got {bottom} in the bottom and "
            f"{top} in the top; set the same members in both, and at all parties"
        )
    return top


def check_members(name: str, own: int | None, peer: str, theirs: Any) -> None:
    """Raise ContractMismatch if a peer's HELLO has another number of members than our modules."""
    if own is not None and type(theirs) is int and theirs != own:
        raise ContractMismatch(
            f"the parties' models differ: members: {name} has {own}, {peer} has {theirs}. Set the "
            "same members of bottom and top in [model] of party.toml at all parties",
            peer=peer,
        )


def _schedule(name: str, job: Job, party: Guest | Host) -> Schedule:
    train, test, validation = party.train, party.test, party.validation
    validation_rows = 0 if validation is None else validation.num_rows
    limit = job.evaluation.rows
    rounds_per_epoch = train.num_rows // job.batch_size
    if rounds_per_epoch == 0:
        raise DataError(
            f"{name}: expected at least one batch of {job.batch_size} training rows, "
            f"got {train.num_rows}"
        )
    if test.num_rows == 0:  # which a run scores at its end, also where validation rows decide
        raise DataError(
            f"{name}: expected at least one test row, got none; set split.test in schema.toml "
            "above 0 at all parties and prepare the rows again, or pass test rows in Python"
        )
    return Schedule(
        num_rounds=job.num_rounds(rounds_per_epoch),
        rounds_per_epoch=rounds_per_epoch,
        evaluate_every=job.evaluation.every,
        # Where they are scored only once, all of them are.
        test_rows=test.num_rows if validation_rows else min(test.num_rows, limit or test.num_rows),
        validation_rows=min(validation_rows, limit or validation_rows),
        part_rows=job.batch_size,
        local_steps_after_update=job.method.local_step_order == "after-update",
    )


def contract_of(job: Job, party: Guest | Host, terms: RunTerms | None = None) -> dict[str, Any]:
    """The fields that must be equal at all parties; those of validation rows if there are any."""
    parts = {"train": party.train, "test": party.test}
    if party.validation is not None and party.validation.num_rows:
        parts["validation"] = party.validation
    rows = {f"{part}_rows": dataset.num_rows for part, dataset in parts.items()}
    ids = {f"{part}_ids": dataset.commitment for part, dataset in parts.items()}
    more = (terms or RunTerms()).contract()
    return {"protocol": VERSION, **job.contract(), **rows, **ids, **more}


def inventory_of(
    contract: Mapping[str, Any], checkpoints: Checkpoints, emit: Callback
) -> Inventory:
    """Our checkpoints; raises CheckpointError if the run in the folder has another contract."""
    identity, rounds = checkpoints.scan()
    for round_, why in checkpoints.damaged.items():
        emit(CheckpointDamaged(round=round_, why=why))
    if identity is None:
        return Inventory()
    # Whether they agree on the length of the run is seen in the handshake.
    before, now = (
        {key: value for key, value in terms.items() if key != TOTAL_ROUNDS}
        for terms in (identity.contract, contract)
    )
    changed = contract_differences("the run", before, "job.toml or the data", now)
    if changed:
        raise CheckpointError(
            "this folder's run has another contract: " + "; ".join(changed[:10]) + ". Restore the "
            "original settings, or start a new run with another --out at all parties"
        )
    return Inventory(identity.run, tuple(rounds), tuple(checkpoints.superseded_rounds()))
