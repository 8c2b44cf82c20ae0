"""Says which line of a user's module failed, instead of a traceback through the engine."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from celu.errors import CeluError, ModelError

_TORCH = Path(torch.__file__).parent
_ENGINE = Path(__file__).parent


@contextmanager
def reporting_module_errors(name: str, what: str) -> Iterator[None]:
    """Raise ModelError for any exception of `what`, with the line of code that caused it."""
    try:
        yield
    except CeluError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name}: {what} raised {type(error).__name__}{_where(error)}: {error}; expected it to "
            "accept a batch of this party's rows"
        ) from error


def _where(error: Exception) -> str:
    """The last line outside torch and the engine, which is most likely the user's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if _TORCH not in path.parents and _ENGINE not in path.parents:
            return f" at {path.name}:{frame.lineno}"
    return ""
