"""Tags: 16-byte hashes of row ids, the same at all parties.

A tag is a hash of the id, keyed with the split's seed. It decides whether the row is held out and
where it is in a store (ascending order), so parties with the same ids have them in the same order,
independent of their raw files. Tags stay at their party: anyone who can guess an id can compute its
tag. Peers see only digests of many tags.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

TAG_BYTES = 16
Tags = npt.NDArray[np.uint8]  # [rows, TAG_BYTES]


def make_tags(ids: Iterable[str], seed: int) -> Tags:
    """The tags of ids, in their order."""
    return tags_of_texts((text.encode() for text in ids), seed)


def tags_of_texts(texts: Iterable[bytes], seed: int) -> Tags:
    """The tags of ids in UTF-8."""
    digests = b"".join(map(tagger(seed), texts))
    return np.frombuffer(digests, np.uint8).reshape(-1, TAG_BYTES)


def tagger(seed: int) -> Callable[[bytes], bytes]:
    """A function that returns the tag of an id in UTF-8."""
    salt = seed.to_bytes(8, "little")
    new_hash = hashlib.blake2b(digest_size=TAG_BYTES, salt=salt, person=b"celu.row.tag").copy

    def tag_of(text: bytes) -> bytes:
        state = new_hash()
        state.update(text)
        return state.digest()

    return tag_of


def held_out(tags: Tags, fraction: float, start: float = 0.0) -> npt.NDArray[np.bool_]:
    """Whether each row is among this fraction of all rows: those from the share `start` on."""
    # From the second half of a tag: the rows are sorted by the first.
    words = np.ascontiguousarray(tags[:, 8:]).view("<u8").reshape(-1)
    stop = words < np.uint64(round((start + fraction) * 2**64))
    return stop & (words >= np.uint64(round(start * 2**64))) if start else stop


def ascending(tags: Tags) -> npt.NDArray[np.int64]:
    """The row numbers in the order of the tags' bytes."""
    halves = np.ascontiguousarray(tags).view(">u8").astype(np.uint64)
    first, second = halves[:, 0], halves[:, 1]
    order = np.argsort(first)  # several times faster than by all 16 bytes, and ties are rare
    if (np.diff(first[order]) == 0).any():
        order = np.lexsort((second, first))
    return order


class Commitment:
    """Identifies a list of rows in order: equal for equal lists, and reveals no single row."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32, person=b"celu.rows")

    def add(self, tags: Tags) -> None:
        """Append rows to the list."""
        self._hash.update(np.ascontiguousarray(tags).data)

    def hexdigest(self) -> str:
        """The commitment to the rows so far."""
        return self._hash.hexdigest()


def commitment(tags: Tags) -> str:
    """The `Commitment` to rows that are in memory."""
    made = Commitment()
    made.add(tags)
    return made.hexdigest()


def digest_rows(tags: Tags) -> bytes:
    """The digest that is sent with the Z and dZ of these rows."""
    data = np.ascontiguousarray(tags)
    return hashlib.blake2b(data.data, digest_size=16, person=b"celu.batch").digest()
