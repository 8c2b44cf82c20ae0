"""A stable hash of strings, for whole arrays: 64-bit FNV-1a, then Murmur3's finaliser.

Stores depend on it, so it must never change. It is not cryptographic: collisions are easy to find.
A cryptographic hash of each string would take longer than the rest of a scan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_MIX = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


def hash_texts(texts: Any) -> npt.NDArray[np.uint64]:
    """The hashes of an Arrow array of strings without nulls, by their UTF-8 bytes."""
    if not len(texts):
        return np.empty(0, np.uint64)
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1]
    lengths = np.diff(ends)
    # Longest first: the strings that have a byte at a position are then a prefix.
    order = np.argsort(-lengths, kind="stable")
    starts = ends[:-1][order]
    longer = len(texts) - np.cumsum(np.bincount(lengths))  # number of strings longer than 0, 1, ...
    hashes = np.full(len(texts), _BASIS)
    if data is not None:
        text = np.frombuffer(data, np.uint8)
        for position, count in enumerate(longer[:-1].tolist()):
            longest = hashes[:count]
            longest ^= text[starts[:count] + position]
            longest *= _PRIME
    hashes ^= hashes >> _SHIFT
    for factor in _MIX:
        hashes *= factor
        hashes ^= hashes >> _SHIFT
    found = np.empty_like(hashes)
    found[order] = hashes
    return found
