"""Turns an exception in a user's module, loss or metric into a ModelError that says where.

The message stays at this party: what is sent to peers is the class of the error.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from celu.errors import CeluError, ModelError

_FRAMES_SHOWN = 3
_MAX_TEXT = 2000
_OTHERS_CODE = (Path(torch.__file__).parent, Path(__file__).parent.parent)


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


def call_metrics(
    metrics: Callable[[Tensor, Tensor], Mapping[str, Any]], output: Tensor, labels: Tensor
) -> dict[str, float]:
    """Metrics by name; raises ModelError."""
    what = f"the metrics of the loss, {name_of(metrics)},"
    with user_code(what, {"output": output, "labels": labels}):
        return {str(name): float(value) for name, value in metrics(output, labels).items()}


def name_of(code: object) -> str:
    """The name of a function, or of the class of an object, with its module."""
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}.{named.__qualname__}"


def last_lines(error: BaseException) -> list[str]:
    """The last calls of an exception in the user's own code, or of all if it has none there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(map(Path(f.filename).is_relative_to, _OTHERS_CODE))]
    return [
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in (own or frames)[-_FRAMES_SHOWN:]
    ]


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
