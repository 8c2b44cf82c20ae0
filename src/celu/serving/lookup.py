"""A company's own feature service: current features of rows, instead of those in the store.

A class that is named in `[serve] lookup` has one method:

    class Features:
        def lookup(self, ids: list[str]) -> list[dict[str, object] | None]: ...

It returns, for each id in the same order, the values of the raw columns by name, as `celu prepare`
would read them: numbers, text, None for a missing value. None instead of a dict: there is no such
row. The class is created once, without arguments. `lookup` is called from one thread at a time; an
exception refuses the ask, and the guest uses its fallback.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from celu.data.dataset import Batch
from celu.errors import ConfigError, DataError
from celu.models.building import resolve
from celu.serving.encoding import RowEncoder


class Lookup(Protocol):
    """What a class in `[serve] lookup` implements."""

    def lookup(self, ids: list[str]) -> list[dict[str, object] | None]:
        """The raw columns of each id, None for an id that is not there."""
        ...


def load_lookup(use: str, folder: Path) -> Lookup:
    """Create an object of the class "module:Class"; modules are searched in `folder` first.

    Raises ConfigError.
    """
    make = resolve(use, {}, "serve.lookup", folder)
    try:
        found = make()
    except Exception as error:
        raise ConfigError(
            f"serve.lookup: {use} cannot be created: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(found, "lookup", None)):
        raise ConfigError(f"serve.lookup: {use}: expected a method lookup(ids), got none")
    service: Lookup = found
    return service


def look_up(service: Lookup, ids: list[str], encoder: RowEncoder) -> Batch:
    """The current rows of ids, encoded; raises DataError if one is not there or does not fit."""
    try:
        found = service.lookup(ids)
    except Exception as error:
        raise DataError(f"serve.lookup raised {type(error).__name__}: {error}") from error
    if not isinstance(found, list) or len(found) != len(ids):
        raise DataError(f"serve.lookup: expected a list of {len(ids)} rows, got something else")
    values: dict[str, list[Any]] = {name: [] for name in encoder.columns}
    for row in found:
        if not isinstance(row, dict):
            raise DataError("serve.lookup: there is no such row")
        for name, column in values.items():
            if name not in row:
                raise DataError(f"serve.lookup: column {name!r}: expected a value, got no column")
            column.append(row[name])
    return encoder.encode(values)
