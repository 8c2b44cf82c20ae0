"""The device that a party computes on, and torch's one-time start-up cost there."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from celu.errors import ConfigError

_T = TypeVar("_T")


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


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one of this thread.

    Triton launches kernels on the current GPU, and seeds and events are of it, whatever the device
    of the tensors.
    """
    if _is_current(device):
        yield
        return
    with torch.cuda.device(device):
        yield


@types.coroutine
def computing_on(device: torch.device, work: Coroutine[Any, Any, _T]) -> Generator[Any, Any, _T]:
    """Await a coroutine, with its device as the current one whenever it executes.

    Parties that take turns in a thread may each have another.
    """
    if _is_current(device):
        result: _T = yield from work
        return result
    received, error = None, None
    try:
        while True:
            with current(device):
                try:
                    found = work.send(received) if error is None else work.throw(error)
                except StopIteration as done:
                    result = done.value
                    return result
            received, error = None, None
            try:
                received = yield found
            except Exception as thrown:
                error = thrown
    finally:
        with current(device):
            work.close()


def _is_current(device: torch.device) -> bool:
    return device.type != "cuda" or device.index in (None, torch.cuda.current_device())


@cache
def warm_up_autograd() -> None:
    """Run a tiny backward pass, so that torch does its lazy loading (half a second) here.

    Otherwise the first rounds would be slow, and `auto` would take that for network latency.
    """
    torch.ones(1, requires_grad=True).backward(torch.ones(1))
