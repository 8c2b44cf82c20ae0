"""What a contract's defences promise, a sentence each: for reports, audits and model cards.

A figure stands only where there is a proof of it. What none covers is in docs/privacy.md.
"""

from __future__ import annotations

import math

from celu.config.job import Job
from celu.config.privacy import GaussianNoise
from celu.engine.schedule import Schedule
from celu.privacy.accountant import gaussian_epsilon, gaussian_mu

MEAN_ROWS = 8192  # of a host's mean Z at the end of a run: enough for a mean, and a moment's work
_MIN_DIGITS = 6  # of delta: at most 1e-6


def promises(job: Job, schedule: Schedule) -> list[str]:
    """What the defences of a run with hosts promise; none without a defence."""
    if not job.hosts:
        return []
    found, privacy = [], job.privacy
    if privacy.label_epsilon is not None:
        found.append(
            f"labels: epsilon {privacy.label_epsilon:g} of label differential privacy for each "
            "row, for everything that hosts receive in this run"
        )
    if privacy.z_noise is not None:
        found.append(_of_z(privacy.z_noise, schedule))
    if privacy.dz_noise is not None:
        found.append(
            f"dZ: {privacy.dz_noise.name} noise, no epsilon; labels are as safe as the audit finds"
        )
    return found


def _of_z(noise: GaussianNoise, schedule: Schedule) -> str:
    rows = schedule.rounds_per_epoch * schedule.part_rows
    digits = max(_MIN_DIGITS, len(str(10 * rows - 1)))  # delta is at most a tenth of 1 over rows
    delta = float(f"1e-{digits}")
    # A row is sent at most once an epoch, and is one of those whose mean is sent at the end.
    epochs = math.ceil(schedule.num_rounds / schedule.rounds_per_epoch)
    evaluations = math.ceil(schedule.num_rounds / schedule.evaluate_every)
    trained = _epsilon(noise, epochs + 1 / min(rows, MEAN_ROWS), delta)
    held_out = _epsilon(noise, evaluations, delta)
    return (
        f"Z: a row's own Z has epsilon {trained} over its {_times(epochs, 'exposure')} (a held-out "
        f"row's {held_out} over {_times(evaluations, 'evaluation')}) at delta {delta:g}, given "
        "the host's weights; what these have learned of a row shows in the Z of others and is not "
        "covered"
    )


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("s" if count > 1 else "")


def _epsilon(noise: GaussianNoise, exposures: float, delta: float) -> str:
    epsilon = gaussian_epsilon(gaussian_mu(noise.noise_multiplier, exposures), delta)
    return f"{math.ceil(epsilon * 100) / 100:g}"
