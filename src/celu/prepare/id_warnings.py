"""Warns of ids that were probably altered on their way: another party's ids would not match them.

It changes no id.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.compute as pc

_ALTERED = {  # pattern: what it means
    r"^\s|\s$": "spaces around them",
    r"^[0-9]+\.0$": 'an ending ".0", as integers have that were read as fractions',
    r"^[0-9](\.[0-9]+)?[eE]\+[0-9]+$": (
        "an exponent, as a spreadsheet writes long numbers: their last digits may be lost"
    ),
}


class IdWarnings:
    """Counts ids that look altered; `add` them block by block."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._rows: Counter[str] = Counter()

    def add(self, ids: Any) -> None:
        """Count the ids of an Arrow array of texts."""
        for pattern, what in _ALTERED.items():
            self._rows[what] += pc.sum(pc.match_substring_regex(ids, pattern)).as_py() or 0

    def warnings(self) -> list[str]:
        """What was found, with the number of rows."""
        return [
            f"column {self._column!r}: {count:,} ids have {what}; if the other parties' ids do "
            "not, these rows will not be found there"
            for what, count in self._rows.items()
            if count
        ]
