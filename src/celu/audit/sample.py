"""Which training rows an audit records: those with the smallest keyed hashes of their tags.

The key is private to the party, so a peer does not know the rows. The choice is a function of the
key and the rows, so that a resumed run records the same ones.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from celu.data.dataset import Dataset
from celu.data.tags import Tags

Ints = npt.NDArray[np.int64]
KEY_BYTES = 32
_CHUNK_ROWS = 1 << 20


class RowSample:
    """At most `num_rows` training rows. A row's slot is its position in the order of the hashes.

    The first `num_canaries` slots are canaries. Of the other rows, an attacker knows the labels of
    those in even slots.
    """

    def __init__(self, train: Dataset, key: bytes, num_rows: int, num_canaries: int = 0) -> None:
        self.key = key
        self.num_canaries = min(num_canaries, train.num_rows // 2, num_rows // 2)
        hashes_N = np.concatenate(
            [
                self._hashes(train.take_tags(start, min(start + _CHUNK_ROWS, train.num_rows)))
                for start in range(0, train.num_rows, _CHUNK_ROWS)
            ]
        )
        num_rows = min(num_rows, len(hashes_N))
        smallest = np.argpartition(hashes_N, num_rows - 1)[:num_rows]
        self.row_numbers: Ints = smallest[np.argsort(hashes_N[smallest], kind="stable")]
        self._sorted = hashes_N[self.row_numbers]

    def __len__(self) -> int:
        return len(self.row_numbers)

    @property
    def is_canary(self) -> npt.NDArray[np.bool_]:
        """Whether the row in each slot has a random label."""
        found: npt.NDArray[np.bool_] = np.arange(len(self)) < self.num_canaries
        return found

    @property
    def is_known(self) -> npt.NDArray[np.bool_]:
        """Whether an attacker knows the label of the row in each slot."""
        is_even: npt.NDArray[np.bool_] = np.arange(len(self)) % 2 == 0
        return is_even & ~self.is_canary

    def find(self, tags: Tags) -> tuple[Ints, Ints]:
        """The positions of sampled rows among these, and their slots."""
        hashes_B = self._hashes(tags)
        slots_B = np.minimum(np.searchsorted(self._sorted, hashes_B), len(self) - 1)
        positions = np.flatnonzero(self._sorted[slots_B] == hashes_B)
        return positions, slots_B[positions]

    def random(self, purpose: str) -> np.random.Generator:
        """Random numbers of the key, for one purpose."""
        return np.random.default_rng(list(self._digest(purpose)))

    @property
    def digest(self) -> bytes:
        """Identifies key and sample in a checkpoint, without revealing the key."""
        return self._digest(f"sample {len(self)} {self.num_canaries}")

    def _digest(self, text: str) -> bytes:
        return hashlib.blake2b(
            text.encode(), key=self.key, digest_size=16, person=b"celu.audit"
        ).digest()

    def _hashes(self, tags: Tags) -> npt.NDArray[np.uint64]:
        """A keyed hash of each tag, which is a hash of an id, or a row number (splitmix64)."""
        words: npt.NDArray[np.uint64] = (
            np.ascontiguousarray(tags[:, :8]).view("<u8").reshape(-1).astype(np.uint64)
        )
        first, second = np.frombuffer(self._digest("rows"), "<u8")
        with np.errstate(over="ignore"):
            words = (words ^ first) * np.uint64(0x9E3779B97F4A7C15) + second
            words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            words ^= words >> np.uint64(31)
        return words
