"""The labelled rows that a guest's rows are taken from: all of a store, or its own datasets.

Their digest tells whether two runs have the same labels of the same rows. It is not keyed, so it
must not leave the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from celu.config.schema import LABEL, TAG
from celu.data.dataset import Dataset
from celu.data.store import Store, tags_of, to_numpy
from celu.data.tags import Tags

_CHUNK = 1 << 20
Labels = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LabelledRows:
    """All rows of a store, also those that an alignment leaves out; or datasets by part."""

    source: Store | Mapping[str, Dataset]

    @cached_property
    def digest(self) -> bytes:
        """The same for the same tags with the same labels in the same parts, else another."""
        whole = hashlib.blake2b(digest_size=32, person=b"celu.labels")
        parts = self.source.parts if isinstance(self.source, Store) else sorted(self.source)
        for part in sorted(parts):
            tags, labels = hashlib.blake2b(), hashlib.blake2b()  # whatever the chunks are
            num_rows = 0
            for some_tags, some_labels in self._chunks(part):
                tags.update(np.ascontiguousarray(some_tags).data)
                labels.update(some_labels.astype("<f8").data)
                num_rows += len(some_labels)
            if num_rows:
                whole.update(f"{part} {num_rows}\0".encode() + tags.digest() + labels.digest())
        return whole.digest()

    def _chunks(self, part: str) -> Iterator[tuple[Tags, Labels]]:
        if isinstance(self.source, Store):
            for batch in self.source.batches(part, [TAG, LABEL]):  # type: ignore[arg-type]
                yield tags_of(batch), to_numpy(batch.column(LABEL)).astype(np.float64)
            return
        rows = self.source[part]
        assert rows.labels is not None  # checked before a run starts
        for start in range(0, rows.num_rows, _CHUNK):
            stop = min(start + _CHUNK, rows.num_rows)
            yield rows.take_tags(start, stop), rows.labels[start:stop].cpu().double().numpy()
