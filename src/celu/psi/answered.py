"""How many ids of a peer were answered, over all keys of an alignment, and how many may be.

Every answered id tells the peer whether we have it. Under one key a peer can have as many answered
as it declares rows; with a fresh key after each failed attempt it could test other ids every time.
The count survives these attempts, in a file, until an alignment succeeds and reports it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from celu.data.folder import sync
from celu.errors import CeluError, ProtocolError

MAX_ANSWERS_PER_ROW = 4  # an attempt may fail in the end and be repeated, but not forever


@dataclass(frozen=True)
class Answered:
    """The number of answered ids of a peer, in all attempts and in the largest one."""

    count: int = 0
    largest: int = 0

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 0 for n in (self.count, self.largest)):
            raise ValueError("expected counts")

    def plus(self, num_ids: int) -> Answered:
        """The count after another attempt."""
        return Answered(self.count + num_ids, max(self.largest, num_ids))

    def check_allows(self, rows: int) -> None:
        """Raise ProtocolError if another attempt must not answer this number of rows."""
        # Not the rows that it declared before: a claim costs nothing.
        limit = MAX_ANSWERS_PER_ROW * max(rows, self.largest)
        if self.count + rows > limit:
            raise ProtocolError(
                f"{self.count} of its ids were answered in attempts that failed, and it starts "
                f"over with {rows}; expected at most {limit} in all, because every answer reveals "
                "whether we have the id. If the failures are explained, remove the file "
                '"answered" of this peer in the work folder of the alignment'
            )


def read_answered(path: Path) -> Answered:
    """Read a count, zero if there is none; raises CeluError if it is damaged."""
    try:
        stored = json.loads(path.read_bytes())
        return Answered(stored["count"], stored["largest"])
    except FileNotFoundError:
        return Answered()
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CeluError(
            f"{path}: expected the number of ids that were answered to this peer, got a damaged "
            "file; remove it to count from zero"
        ) from error


def write_answered(path: Path, answered: Answered) -> None:
    """Replace a count; it survives a power cut."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(json.dumps(asdict(answered)).encode())
    sync(new)
    new.replace(path)
    sync(path.parent)
