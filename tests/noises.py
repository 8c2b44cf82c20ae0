"""Federations with noise on Z and dZ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import celu
from federation import Federation, federation
from twins import with_labels

KEY = b"the key of the noise"
GAUSSIAN = {"name": "gaussian", "clip": 0.5, "noise_multiplier": 2.0}
MARVELL = {"name": "marvell", "power": 4.0}


def noisy_federation(
    *,
    z_noise: dict[str, Any] | None = None,
    dz_noise: dict[str, Any] | None = None,
    label_epsilon: float | None = None,
    key: Any = KEY,
    **job: Any,
) -> Federation:
    """A federation with noise; `job` are arguments of `federation`."""
    privacy = {"z_noise": z_noise, "dz_noise": dz_noise, "label_epsilon": label_epsilon}
    fed = federation(privacy=privacy, **job)
    fed = with_labels(fed, lambda labels: labels, KEY, noise_key=key)
    hosts: dict[str, celu.Host] = {
        name: replace(host, noise_key=key) for name, host in fed.hosts.items()
    }
    return replace(fed, hosts=hosts)
