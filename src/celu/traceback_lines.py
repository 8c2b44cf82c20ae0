"""The last lines of a traceback that are in a user's own code, for messages at this party."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

_SHOWN = 3
_CELU = Path(__file__).parent


def last_lines(error: BaseException) -> list[str]:
    """The last calls of an exception in the user's own code, or of all if it has none there."""
    frames = traceback.extract_tb(error.__traceback__)
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    others = [_CELU, *([Path(torch_file).parent] if torch_file else [])]
    own = [f for f in frames if not any(map(Path(f.filename).is_relative_to, others))]
    return [
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in (own or frames)[-_SHOWN:]
    ]
