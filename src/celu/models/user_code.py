"""Turns an exception in a user's module or loss into a ModelError that says where.

The message stays at this party: what is sent to peers is the class of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from celu.errors import CeluError, ModelError
from celu.traceback_lines import last_lines

_MAX_TEXT = 2000


@contextmanager
def user_code(what: str, arguments: Mapping[str, Tensor] | Sequence[Tensor]) -> Iterator[None]:
    """Raise ModelError for an exception in the block: its shapes and the last lines of its trace.

    `what` runs, with these arguments. Errors of celu pass. SystemExit is an error like others: no
    command may end as if its work were done.
    """
    try:
        yield
    except CeluError:
        raise
    except (Exception, SystemExit) as error:
        lines = [
            f"{what} raised {type(error).__name__}: {str(error)[:_MAX_TEXT]}",
            f"  it got {describe(arguments)}",
            *(f"  {line}" for line in last_lines(error)),
            "  correct it, and start again",
        ]
        raise ModelError("\n".join(lines)) from error


def call_bottom(party: str, bottom: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """A bottom's Z; raises ModelError."""
    what = bottom_of(party, bottom)
    with user_code(what, inputs):
        return _tensor(what, bottom(**inputs))


def call_top(party: str, top: nn.Module, zs: Sequence[Tensor]) -> Tensor:
    """A top's output; raises ModelError."""
    what = top_of(party, top)
    with user_code(what, zs):
        return _tensor(what, top(*zs))


def call_loss(
    party: str, loss: Callable[[Tensor, Tensor], Tensor], output: Tensor, labels: Tensor
) -> Tensor:
    """A loss's values; raises ModelError, also unless there is one for each row, as a float."""
    what = f"{party}: the loss, {name_of(loss)},"
    with user_code(what, {"output": output, "labels": labels}):
        losses_B = _tensor(what, loss(output, labels))
    # [B, 1] losses times [B] weights would silently broadcast to [B, B].
    if tuple(losses_B.shape) != (len(labels),):
        raise ModelError(
            f"{what} must return one value per instance, [{len(labels)}], got "
            f"{list(losses_B.shape)}; it got {describe({'output': output, 'labels': labels})}"
        )
    if not losses_B.is_floating_point():
        raise ModelError(
            f"{what} must return floating-point numbers, which have a gradient, got "
            f"{_dtype(losses_B)}"
        )
    return losses_B


def check_z(what: str, z_BD: Tensor, width: int, inputs: Mapping[str, Tensor]) -> None:
    """Raise ModelError unless Z of these inputs is a matrix of float32 of this width.

    `what` is that of `bottom_of`.
    """
    rows = len(next(iter(inputs.values())))
    if tuple(z_BD.shape) != (rows, width):
        raise ModelError(
            f"{what} must return Z of [{rows}, {width}] (the contract's z_width), got "
            f"{list(z_BD.shape)}; it got {describe(inputs)}"
        )
    if z_BD.dtype != torch.float32:
        raise ModelError(
            f"{what} must return Z in float32, got {_dtype(z_BD)}; end its forward with .float()"
        )


def bottom_of(party: str, bottom: nn.Module) -> str:
    """What errors call a bottom."""
    return f"{party}: the bottom model, {name_of(bottom)},"


def top_of(party: str, top: nn.Module) -> str:
    """What errors call a top."""
    return f"{party}: the top model, {name_of(top)},"


def name_of(code: object) -> str:
    """The name of a function, or of the class of an object, with its module."""
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}.{named.__qualname__}"


def _tensor(what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise ModelError(f"{what} must return a tensor, got {type(value).__name__}")
    return value


def describe(arguments: Mapping[str, Tensor] | Sequence[Tensor]) -> str:
    """The arguments' names, shapes and types."""
    if isinstance(arguments, Mapping):
        shown = [f"{name} {_shape(tensor)}" for name, tensor in arguments.items()]
    else:
        shown = [_shape(tensor) for tensor in arguments]
    return ", ".join(shown) or "no arguments"


def _shape(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {_dtype(tensor)}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
