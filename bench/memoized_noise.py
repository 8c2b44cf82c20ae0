"""A broken defence that an audit must find: Marvell's noise, drawn once for each row.

Fresh noise averages out over the exposures of a row. Noise that is drawn once does not, but the
differences between two exposures then have none at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from celu.audit.recorder import Recorder
from celu.audit.result import Audit
from celu.config.job import Job
from celu.engine.auditing import AuditOptions
from celu.party import Guest
from celu.privacy.row_noise import marvell


@dataclass(frozen=True)
class MemoizedMarvell(AuditOptions):
    """Audits what hosts would have received, had this noise been added."""

    power: float = 8.0

    def of_guest(self, name: str, guest: Guest, job: Job, recorder: Recorder) -> Audit:
        """See `AuditOptions`."""
        assert guest.train.labels is not None
        rows = torch.from_numpy(recorder.sample.row_numbers)
        is_positive_N = guest.label_map.codes(guest.train.labels[rows]) == 1
        return super().of_guest(name, guest, job, with_noise(recorder, is_positive_N, self.power))


def with_noise(recorder: Recorder, is_positive_N: Tensor, power: float) -> Recorder:
    """The same exposures, with the noise of each row in all of its own."""
    dz_NED, forecast_NEC = recorder.exposures("dz.host"), recorder.exposures("forecast")
    noisy = Recorder(recorder.sample, dz_NED.shape[1])
    for exposure in reversed(range(dz_NED.shape[1])):  # the newest is the first
        random = torch.Generator().manual_seed(1)  # the same numbers for each exposure
        exact_ND = dz_NED[:, exposure].double()
        normal_ND = torch.randn(exact_ND.shape, generator=random, dtype=torch.float64)
        dz_ND = marvell(exact_ND, is_positive_N, power, normal_ND).float()
        slots = torch.nonzero(recorder.counts > exposure)[:, 0]
        noisy.add(slots, {"dz.host": dz_ND[slots], "forecast": forecast_NEC[slots, exposure]})
    return noisy
