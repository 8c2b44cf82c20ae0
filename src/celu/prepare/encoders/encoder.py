"""The interface of an encoder, which converts a raw column to the columns of a store.

Preparing a store takes two passes over the rows. In the first, `fit` is called with each block: it
updates the statistics from the training rows and returns the values to spill. In the second, when
the statistics are final, `transform` converts spilled values to stored ones.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from celu.prepare.parsing import Kind

Mask = npt.NDArray[np.bool_]

MAX_FLOAT32 = float(np.finfo(np.float32).max)


class Encoder(Protocol):
    """Encodes one raw column."""

    name: str

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Update the statistics from the training rows; return the values of all rows to spill.

        They are [rows], or [rows, values] for a column of lists; so are the stored values.
        """

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The stored values of spilled ones, by column, once all rows are fitted."""

    def problems(self) -> list[str]:
        """Errors in the rows since the last call: a store cannot be made."""

    def warnings(self) -> list[str]:
        """Warnings about the training rows, for the user."""


class Feature(Encoder, Protocol):
    """Encodes a raw column of features."""

    @property
    def kind(self) -> Kind:
        """How the raw column is read."""

    @property
    def columns(self) -> list[str]:
        """The names of its columns in the store."""

    @property
    def unseen(self) -> int:
        """The number of rows with values outside a vocabulary that was fitted on other rows."""
