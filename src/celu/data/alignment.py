"""An alignment: the rows of a party's store that all parties hold, in the common order.

    ALIGNMENT/alignment.json    peers, row counts, and the commitments that a run compares
    ALIGNMENT/train.npy         row numbers of the store's training rows
    ALIGNMENT/test.npy          row numbers of its test rows; likewise validation.npy, if it has any

It is private to the party. `celu align` writes it, `celu run` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from celu.config.reading import Settings, read_json
from celu.config.schema import CountByPart, Part
from celu.data.folder import NewFolder
from celu.data.store import Store
from celu.data.tags import commitment
from celu.errors import AlignmentError, DataError

_FACTS_FILE = "alignment.json"
Rows = npt.NDArray[np.int64]
Count = Annotated[int, Field(ge=0)]
_WINDOW = 1 << 18  # row numbers that are checked at a time


class AlignmentFacts(Settings):
    """The content of `alignment.json`."""

    format: Literal["celu-alignment-1"] = "celu-alignment-1"
    peers: dict[str, Count]  # the number of rows that each peer reported
    common: dict[str, Count]  # ... and the number of them in this store
    answered: dict[str, Count] = {}  # ids of each peer that were answered, in all attempts
    store_rows: CountByPart
    rows: CountByPart
    commitments: dict[Part, str]

    @model_validator(mode="after")
    def _parts_agree(self) -> AlignmentFacts:
        if not self.store_rows.keys() == self.rows.keys() == self.commitments.keys():
            raise ValueError("expected the same parts in store_rows, rows and commitments")
        return self


@dataclass(frozen=True)
class Alignment:
    """Row numbers of a store by part, and the facts that were written with them."""

    path: Path
    facts: AlignmentFacts
    rows: dict[Part, Rows]

    def numbers(self, part: Part, start: int, stop: int) -> Rows:
        """A copy of some row numbers: memory does not grow with what was read before."""
        return _window(self.path / f"{part}.npy", start, stop)

    def is_ascending(self) -> bool:
        """Whether the row numbers of each part ascend: the store is in the order of the tags."""
        for part, count in self.facts.rows.items():
            for start in range(0, count, _WINDOW):
                window = self.numbers(part, max(0, start - 1), start + _WINDOW)
                if (np.diff(window) <= 0).any():
                    return False
        return True


def write_alignment(
    path: Path,
    store: Store,
    rows: dict[Part, Rows],
    *,
    peers: dict[str, int],
    common: dict[str, int],
    answered: dict[str, int] | None = None,
) -> Alignment:
    """Write an alignment; an existing one is replaced when this one is complete."""
    facts = AlignmentFacts(
        peers=peers,
        common=common,
        answered=answered or {},
        store_rows=dict(store.schema.rows),
        rows={part: len(rows[part]) for part in store.parts},
        commitments={part: commitment(store.tags(part)[rows[part]]) for part in store.parts},
    )
    publish_alignment(path, facts.rows, lambda part: [rows[part]], lambda: facts)
    return Alignment(path, facts, rows)


def publish_alignment(
    path: Path,
    counts: Mapping[Part, int],
    numbers: Callable[[Part], Iterable[Rows]],
    facts: Callable[[], AlignmentFacts],
) -> None:
    """Write the row numbers of each part, piece by piece, and then the facts."""
    with NewFolder(path, _FACTS_FILE, replace=True) as folder:
        for part, count in counts.items():
            with (folder.path / f"{part}.npy").open("wb") as file:
                header = {"descr": "<i8", "fortran_order": False, "shape": (count,)}
                np.lib.format.write_array_header_1_0(file, header)
                for piece in numbers(part):
                    file.write(piece.astype("<i8").tobytes())
        text = facts().model_dump_json(indent=2) + "\n"
        (folder.path / _FACTS_FILE).write_text(text, encoding="utf-8")
        folder.publish()


def read_alignment(path: Path | str, store: Store) -> Alignment:
    """Read an alignment of this store.

    Raises DataError for files that are missing or damaged, AlignmentError if the number of rows of
    the store has changed since.
    """
    path = Path(path)
    align = 'run "celu align" at all parties, or set data.aligned = true'
    facts = read_json(AlignmentFacts, path / _FACTS_FILE, "an alignment", align, DataError)
    num_rows = store.schema.rows
    if facts.store_rows != num_rows:
        raise AlignmentError(
            f"the alignment was made for a store of {facts.store_rows} rows, the store has "
            f'{num_rows}; run "celu align" again at all parties'
        )
    rows = {part: _read_rows(path / f"{part}.npy", facts, part) for part in store.parts}
    return Alignment(path, facts, rows)


def _read_rows(file: Path, facts: AlignmentFacts, part: Part) -> Rows:
    count = facts.rows[part]
    try:
        # No pickle and no archive. Mapped, so a false row count in the header allocates nothing.
        rows = np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # a damaged header raises many types
        raise DataError(f"{file}: expected row numbers, got: {error}") from error
    if rows.dtype != np.int64 or rows.shape != (count,):
        raise DataError(f"{file}: expected {count} row numbers, got {rows.dtype} {rows.shape}")
    for start in range(0, count, _WINDOW):
        window = _window(file, start, start + _WINDOW)
        if not (window.min() >= 0 and window.max() < facts.store_rows[part]):
            raise DataError(f"{file}: expected row numbers within the store, got others")
    return np.asarray(rows)


def _window(file: Path, start: int, stop: int) -> Rows:
    """A copy of some numbers, through a mapping of its own: its pages are released at once."""
    try:
        rows: Rows = np.lib.format.open_memmap(file, mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: expected row numbers, got: {error}") from error
    return np.array(rows[start:stop])
