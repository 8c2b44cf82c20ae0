"""How an ask names rows: by numbers of the alignment, or by tags, as the contract says.

A tag has 16 bytes; an ask has numbers below 2**48. So a tag is three numbers of up to six bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from celu.data.tags import TAG_BYTES

NUMBERS_PER_ROW = {"numbers": 1, "tags": 3}
_BYTES = 6


def numbers_from_tags(tags: Sequence[bytes]) -> list[int]:
    """Tags as numbers, three for each."""
    starts = range(0, TAG_BYTES, _BYTES)
    return [
        int.from_bytes(tag[start : start + _BYTES], "little") for tag in tags for start in starts
    ]


def tags_from_numbers(numbers: Sequence[int]) -> list[bytes]:
    """The inverse; numbers that are no tags become tags that no row has, or some other row has."""
    tags = []
    for start in range(0, len(numbers) - 2, 3):
        parts = [number.to_bytes(8, "little")[:_BYTES] for number in numbers[start : start + 3]]
        tags.append(b"".join(parts)[:TAG_BYTES])
    return tags
