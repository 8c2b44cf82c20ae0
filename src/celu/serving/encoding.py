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
from celu.data.inputs import layouts
from celu.errors import DataError
from celu.prepare.new_store import fitted_store
from celu.prepare.number_text import NumberStyle

MAX_TEXT = 65_536  # characters of one value


class RowEncoder:
    """The encoders of the columns that a model uses; safe to call from several threads.

    A value that is not in a vocabulary has a code of its own, as in `celu prepare`; `unseen` counts
    these values by column.
    """

    def __init__(self, schema: StoreSchema, inputs: Mapping[str, Sequence[str]]) -> None:
        store = fitted_store(schema, Path(), labelled=False)
        self._layouts = layouts(schema, inputs, "model")
        used = {column for columns in inputs.values() for column in columns}
        self._features = [f for f in store.features if not used.isdisjoint(f.columns)]
        self._style = NumberStyle.of(schema.source)
        self._missing = {"", *schema.source.missing}
        self._lock = threading.Lock()  # encoders count what they encode

    @property
    def columns(self) -> dict[str, str]:
        """The raw columns of the model, each "number", "category", "date" or "bag"."""
        return {feature.name: feature.kind for feature in self._features}

    @property
    def unseen(self) -> dict[str, int]:
        """The number of values outside each vocabulary so far."""
        with self._lock:
            return {f.name: f.unseen for f in self._features if f.unseen}

    def encode(self, values: Mapping[str, Sequence[Any]]) -> Batch:
        """Rows as inputs of the bottom model, from the values of each raw column.

        None is a missing value; dates and bags are text, as in a raw file. Raises DataError that
        names a column which is absent, or has another type or a number that is not finite. It never
        quotes a value.
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
            for feature in self._features:
                name = feature.name
                if feature.kind == "number":
                    array = pa.array(self._parse_numbers(name, values[name]), pa.float64())
                else:
                    texts = pa.array(self._parse_texts(name, values[name]), pa.string())
                    array = texts.dictionary_encode()
                stored = feature.transform(feature.fit(array, everywhere))
                encoded.update(zip(feature.columns, stored, strict=True))
            problems = [problem for feature in self._features for problem in feature.problems()]
        if problems:
            raise DataError("; ".join(problems))
        inputs = {}
        for name, layout in self._layouts.items():
            stacked = torch.from_numpy(layout.stack([encoded[c] for c in layout.columns]))
            inputs[name] = stacked.long() if layout.sizes else stacked
        return Batch(inputs, None, np.zeros((len(everywhere), 0), np.uint8))

    def _parse_numbers(self, name: str, values: Sequence[Any]) -> list[float | None]:
        parsed: list[float | None] = []
        for value in values:
            if value is None or (isinstance(value, str) and value in self._missing):
                parsed.append(None)
                continue
            try:
                number = self._style.parse(value) if isinstance(value, str) else float(value)
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
                    f"column {name!r}: expected text, integers or booleans, got something else"
                )
            if len(text) > MAX_TEXT:
                raise DataError(f"column {name!r}: expected at most {MAX_TEXT} characters")
            try:
                text.encode()
            except UnicodeEncodeError:
                raise DataError(f"column {name!r}: expected UTF-8, got other text") from None
            parsed.append(None if text in self._missing else text)
        return parsed
