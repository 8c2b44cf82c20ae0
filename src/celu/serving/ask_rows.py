"""How an ask names rows: by numbers of the alignment, or by tags, as the contract says.

A tag has 16 bytes; an ask has numbers below 2**48. So a tag is three numbers of up to six bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from celu.data.tags import TAG_BYTES
from celu.serving.row_index import Numbers

NUMBERS_PER_ROW = {"numbers": 1, "tags": 3}
_BYTES = 6


def numbers_from_tags(tags: Sequence[bytes]) -> list[int]:
    """Tags as numbers, three for each."""
    starts = range(0, TAG_BYTES, _BYTES)
    return [
        int.from_bytes(tag[start : start + _BYTES], "little") for tag in tags for start in starts
    ]


def tags_from_numbers(numbers: Numbers) -> list[bytes]:
    """The inverse; numbers that are no tags become tags that no row has, or some other row has."""
    usable = numbers[: len(numbers) // 3 * 3].astype("<i8")
    parts = usable.view(np.uint8).reshape(-1, 3, 8)[:, :, :_BYTES]
    return [tag.tobytes() for tag in parts.reshape(-1, 3 * _BYTES)[:, :TAG_BYTES]]
