"""Turns an exception in a user's module or loss into a ModelError that says where.

The message stays at this party: what is sent to peers is the class of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from celu.errors import CeluError, ModelError
from celu.traceback_lines import last_lines

_MAX_TEXT = 2000


@contextmanager
def user_code(what: str, arguments: Mapping[str, Tensor] | Sequence[Tensor]) -> Iterator[None]:
    """Raise ModelError for an exception in the block: its shapes and the last lines of its trace.

    `what` runs, with these arguments. Errors of celu pass.
    """
    try:
        yield
    except CeluError:
        raise
    except Exception as error:
        lines = [
            f"{what} raised {type(error).__name__}: {str(error)[:_MAX_TEXT]}",
            f"  it got {_describe(arguments)}",
            *(f"  {line}" for line in last_lines(error)),
            "  correct it, and start again",
        ]
        raise ModelError("\n".join(lines)) from error


def call_bottom(party: str, bottom: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """A bottom's Z; raises ModelError."""
    what = f"{party}: the bottom model, {name_of(bottom)},"
    with user_code(what, inputs):
        return _tensor(what, bottom(**inputs))


def call_top(party: str, top: nn.Module, zs: Sequence[Tensor]) -> Tensor:
    """A top's output; raises ModelError."""
    what = f"{party}: the top model, {name_of(top)},"
    with user_code(what, zs):
        return _tensor(what, top(*zs))


def call_loss(
    party: str, loss: Callable[[Tensor, Tensor], Tensor], output: Tensor, labels: Tensor
) -> Tensor:
    """A loss's values; raises ModelError, also unless there is one for each row."""
    what = f"{party}: the loss, {name_of(loss)},"
    with user_code(what, {"output": output, "labels": labels}):
        losses_B = _tensor(what, loss(output, labels))
    # [B, 1] losses times [B] weights would silently broadcast to [B, B].
    if tuple(losses_B.shape) != (len(labels),):
        raise ModelError(
            f"{party}: the loss must return one value per instance, [{len(labels)}], got "
            f"{list(losses_B.shape)}"
        )
    return losses_B


def name_of(code: object) -> str:
    """The name of a function, or of the class of an object, with its module."""
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}.{named.__qualname__}"


def _tensor(what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise ModelError(f"{what} must return a tensor, got {type(value).__name__}")
    return value


def _describe(arguments: Mapping[str, Tensor] | Sequence[Tensor]) -> str:
    if isinstance(arguments, Mapping):
        shown = [f"{name} {_shape(tensor)}" for name, tensor in arguments.items()]
    else:
        shown = [_shape(tensor) for tensor in arguments]
    return ", ".join(shown) or "no arguments"


def _shape(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
