"""The device that a party computes on, and torch's one-time start-up cost there."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import nn

from celu.errors import ConfigError


def device_of(modules: Iterable[nn.Module]) -> torch.device:
    """The device of the modules' parameters; the CPU if none of them has parameters."""
    parameters = (p for module in modules for p in module.parameters())
    return next((p.device for p in parameters), torch.device("cpu"))


def find_device(name: str) -> torch.device:
    """The torch device with this name; raises ConfigError if it is not available."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} is not available: {reason}") from error
    return device


@cache
def warm_up_autograd() -> None:
    """Run a tiny backward pass, so that torch does its lazy loading (half a second) here.

    Otherwise the first rounds would be slow, and `auto` would take that for network latency.
    """
    torch.ones(1, requires_grad=True).backward(torch.ones(1))
