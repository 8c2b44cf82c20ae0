"""Encodes raw rows for a model, with the fitted encoders of its schema, as `celu prepare` does."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from celu.config.schema import StoreSchema
from celu.data.dataset import Batch
from celu.errors import DataError
from celu.prepare.new_store import fitted_store

MAX_TEXT = 65_536  # characters of one value


class RowEncoder:
    """The encoders of the columns that a model uses; safe to call from several threads.

    A value that is not in a vocabulary has a code of its own, as in `celu prepare`; `unseen` counts
    these values by column.
    """

    def __init__(self, schema: StoreSchema, inputs: Mapping[str, Sequence[str]]) -> None:
        store = fitted_store(schema, Path(), labelled=False)
        used = {column for columns in inputs.values() for column in columns}
        self._inputs = {name: list(columns) for name, columns in inputs.items()}
        self._numbers = {e.name: e for e in store.numbers if e.name in used}
        self._categories = {e.name: e for e in store.categories if e.name in used}
        self._missing = {"", *schema.source.missing}
        self._lock = threading.Lock()  # encoders count what they encode

    @property
    def columns(self) -> dict[str, str]:
        """The raw columns of the model, each "number" or "category"."""
        return dict.fromkeys(self._numbers, "number") | dict.fromkeys(self._categories, "category")

    @property
    def unseen(self) -> dict[str, int]:
        """The number of values outside each vocabulary so far."""
        with self._lock:
            return {
                name: encoder.unseen
                for name, encoder in self._categories.items()
                if hasattr(encoder, "unseen")
            }

    def encode(self, values: Mapping[str, Sequence[Any]]) -> Batch:
        """Rows as inputs of the bottom model, from the values of each raw column.

        None is a missing value. Raises DataError that names a column which is absent, or has
        another type or a number that is not finite. It never quotes a value.
        """
        missing = sorted(self.columns.keys() - values.keys())
        if missing:
            raise DataError(f"column {missing[0]!r}: expected a value in every row, got no column")
        num_rows = {len(values[name]) for name in self.columns}
        if len(num_rows) != 1:
            raise DataError(f"expected columns of one length, got {sorted(num_rows)}")
        everywhere = np.zeros(next(iter(num_rows)), bool)  # no training rows: nothing is fitted
        encoded: dict[str, Any] = {}
        with self._lock:
            for name, number in self._numbers.items():
                array = pa.array(self._parse_numbers(name, values[name]), pa.float64())
                encoded[name] = number.transform(number.fit(array, everywhere))
            for name, category in self._categories.items():
                texts = pa.array(self._parse_texts(name, values[name]), pa.string())
                spilled = category.fit(texts.dictionary_encode(), everywhere)
                encoded[name] = category.transform(spilled)
            problems = [p for e in self._numbers.values() for p in e.problems()]
        if problems:
            raise DataError("; ".join(problems))
        inputs = {}
        for name, columns in self._inputs.items():
            stacked = torch.from_numpy(np.stack([encoded[c] for c in columns], axis=1))
            inputs[name] = stacked.long() if columns[0] in self._categories else stacked
        return Batch(inputs, None, np.zeros((len(everywhere), 0), np.uint8))

    def _parse_numbers(self, name: str, values: Sequence[Any]) -> list[float | None]:
        parsed: list[float | None] = []
        for value in values:
            if value is None or (isinstance(value, str) and value in self._missing):
                parsed.append(None)
                continue
            try:
                if isinstance(value, str):
                    _check_number(value)
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise DataError(f"column {name!r}: expected numbers, got something else") from None
            parsed.append(None if np.isnan(number) else number)
        return parsed

    def _parse_texts(self, name: str, values: Sequence[Any]) -> list[str | None]:
        parsed: list[str | None] = []
        for given in values:
            # A user's own lookup may return scalars of NumPy.
            value = given.item() if isinstance(given, np.generic) else given
            if value is None:
                parsed.append(None)
                continue
            if isinstance(value, bool):
                text = str(value).lower()  # as Arrow writes it
            elif isinstance(value, str | int):
                text = str(value)
            else:
                raise DataError(
                    f"column {name!r}: expected text, integers or booleans for a category, "
                    "got something else"
                )
            if len(text) > MAX_TEXT:
                raise DataError(f"column {name!r}: expected at most {MAX_TEXT} characters")
            try:
                text.encode()
            except UnicodeEncodeError:
                raise DataError(f"column {name!r}: expected UTF-8, got other text") from None
            parsed.append(None if text in self._missing else text)
        return parsed


def _check_number(text: str) -> None:
    """Raise ValueError for text that Python reads as a number and `celu prepare` does not."""
    if "_" in text or not text.isascii():
        raise ValueError
