"""The ids of a store's rows, in the order in which a dataset has them.

Datasets hold tags, which are hashes of ids; only what a party writes for itself needs the ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from celu.config.schema import ID, TAG, Part
from celu.data.alignment import Alignment
from celu.data.store import Store, tags_of
from celu.data.tags import Tags
from celu.errors import DataError


def read_ids(store: Store, part: Part, alignment: Alignment | None, tags: Tags) -> Any:
    """The ids of the first rows of a part, as an Arrow array of strings: one for each of `tags`.

    Raises DataError if the store no longer has the rows with these tags in this order.
    """
    ids, found = [], []
    for batch in store.batches(part, [ID, TAG]):
        ids.append(batch.column(ID).cast(pa.large_string()))
        found.append(tags_of(batch))
    rows = np.arange(len(tags)) if alignment is None else alignment.rows[part][: len(tags)]
    all_tags = np.concatenate(found) if found else tags[:0]
    if (len(rows) and rows.max() >= len(all_tags)) or not np.array_equal(all_tags[rows], tags):
        raise DataError(
            f"{store.path}: expected the {part} rows that the run used, got others; the store "
            "changed since then"
        )
    texts = pa.chunked_array(ids, pa.large_string()).combine_chunks()
    return texts.take(pa.array(rows))
