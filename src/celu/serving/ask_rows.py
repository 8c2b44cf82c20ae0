"""How an ask names rows: by numbers of the alignment, or by tags, as the contract says.

A tag has 16 bytes; an ask has numbers below 2**48. So a tag is three numbers of up to six bytes.
"""

from __future__ import annotations

import numpy as np

from celu.data.tags import TAG_BYTES, Tags
from celu.serving.row_index import Numbers

NUMBERS_PER_ROW = {"numbers": 1, "tags": 3}
_BYTES = 6


def numbers_from_tags(tags: Tags) -> Numbers:
    """Tags, [rows, 16], as numbers, [3 * rows]."""
    padded = np.zeros((len(tags), 3, 8), np.uint8)
    wide = np.zeros((len(tags), 3 * _BYTES), np.uint8)
    wide[:, :TAG_BYTES] = tags
    padded[:, :, :_BYTES] = wide.reshape(len(tags), 3, _BYTES)
    return padded.reshape(-1).view("<i8").astype(np.int64)


def tags_from_numbers(numbers: Numbers) -> Tags:
    """The inverse; numbers that are no tags become tags that no row has, or some other row has."""
    usable = numbers[: len(numbers) // 3 * 3].astype("<i8")
    parts = usable.view(np.uint8).reshape(-1, 3, 8)[:, :, :_BYTES]
    return np.ascontiguousarray(parts.reshape(-1, 3 * _BYTES)[:, :TAG_BYTES])
