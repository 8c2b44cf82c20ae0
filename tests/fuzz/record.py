"""What fuzzing with coverage as the guide has done, like the other files of docs/results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from celu.run_folder import hardware, versions


@dataclass(frozen=True)
class Fuzzed:
    """One decoder. It failed if an input did, or if its process did not end by itself."""

    decoder: str
    seconds: float
    executions: int
    added: int  # inputs that reach code which the corpus did not
    failed: bool


def to_json(fuzzed: Sequence[Fuzzed], command: str) -> dict[str, Any]:
    """The record of the decoders fuzzed so far."""
    return {
        "bench": "fuzz",
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware(),
        "seeds": [],  # libFuzzer draws its own
        "rows": [asdict(one) for one in fuzzed],
        "figures": {
            "decoders": len(fuzzed),
            "executions": sum(one.executions for one in fuzzed),
            "seconds": round(sum(one.seconds for one in fuzzed), 1),
            "added": sum(one.added for one in fuzzed),
            "failures": sum(one.failed for one in fuzzed),
        },
        "notes": [],
    }
