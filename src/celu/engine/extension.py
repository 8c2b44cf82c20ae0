"""More rounds for a run that was planned shorter: its new length, and where it continues.

At its end a run has no rounds in flight, and evaluates. A run that was longer from the start would
have done neither there. So checkpoints of the last rounds are not used if that makes a difference:
training continues from an earlier one, and the result is that of the longer run, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.engine.schedule import Schedule
from celu.errors import ConfigError

TOTAL_ROUNDS = "total_rounds"  # in the contract of a run that was extended


def total_rounds(contract: Mapping[str, Any], planned: int) -> int:
    """The length of a run by its contract; `planned` is that of its job."""
    total = contract.get(TOTAL_ROUNDS)
    return total if type(total) is int and total > 0 else planned


def recorded_rounds(checkpoints: Checkpoints | None) -> int | None:
    """The length that the parties agreed on when they extended the run; None if they did not."""
    identity = None if checkpoints is None else checkpoints.scan()[0]
    return None if identity is None else total_rounds(identity.contract, 0) or None


def check_more(more: object) -> None:
    """Raise ConfigError unless this is a number of rounds that a run can be continued by."""
    if isinstance(more, bool) or not isinstance(more, int) or more < 1:
        raise ConfigError(
            f"more: expected a whole number of rounds to add, of at least 1, got {more!r}; leave "
            "it out to resume a run as it is"
        )


def extended_rounds(job: Job, num_rows: int, checkpoints: Checkpoints, more: int) -> int:
    """The length of the run in this folder, of `num_rows` training rows, with `more` rounds.

    `more` has passed `check_more`. They are added to the rounds that were planned or, if the run
    has stopped early, to those that were done. Raises ConfigError if there is no run, or one whose
    settings depend on its length.
    """
    identity, rounds = checkpoints.scan()
    if identity is None:
        raise ConfigError(
            "--more: expected a run to continue, got a folder without one; start it without --more"
        )
    if job.auto:
        raise ConfigError(
            '--more: expected a fixed method, got method = "auto", whose choices depend on the '
            "number of rounds; start a new run from the weights of this one (start in party.toml)"
        )
    planned = job.num_rounds(max(1, num_rows // job.batch_size))
    if rounds[-1] > 0 and _is_done(checkpoints, rounds[-1]):
        return rounds[-1] + more
    return total_rounds(identity.contract, planned) + more


def usable_rounds(
    job: Job, planned: int, schedule: Schedule, checkpoints: Checkpoints, rounds: Sequence[int]
) -> list[int]:
    """The rounds of these checkpoints that a run of this schedule can resume from."""
    return [
        round_
        for round_ in rounds
        if round_ == 0 or _is_usable(job, planned, schedule, checkpoints, round_)
    ]


def shorter_rounds(
    planned: int, schedule: Schedule, checkpoints: Checkpoints | None, round_: int
) -> int | None:
    """The length of the run when this checkpoint was written, if the run was extended since."""
    if checkpoints is None or round_ == 0:
        return None
    total = total_rounds(checkpoints.contracts[round_], planned)
    return None if total == schedule.num_rounds else total


def _is_usable(
    job: Job, planned: int, schedule: Schedule, checkpoints: Checkpoints, round_: int
) -> bool:
    shorter = shorter_rounds(planned, schedule, checkpoints, round_)
    if shorter is None:
        return True
    if round_ < shorter and _is_done(checkpoints, round_):  # it was stopped there, and continues
        return True
    # Later checkpoints have fewer rounds in flight than those of a longer run.
    last = shorter - job.max_depth + 1
    if schedule.validates and shorter % schedule.evaluate_every:  # the last evaluation was extra
        last = min(last, shorter - 1)
    return round_ <= last


def _is_done(checkpoints: Checkpoints, round_: int) -> bool:
    return checkpoints.load(round_).state.get("done") is True
