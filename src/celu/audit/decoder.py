"""What Z reveals of a host's own columns: a network learns to compute them from Z.

It knows the columns of half of the rows, as an attacker with some of the host's rows would, and is
measured on the others. A number is recovered as far as its variance is explained; a category as far
as its value is found, beyond always guessing the most frequent one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from celu.audit.leak import Bools, Floats
from celu.audit.learner import standardize
from celu.audit.mlp import Mlp

_HIDDEN = 64
_EPOCHS = 8
_VALUES = 20  # the most frequent values of a category, which a decoder may find


@dataclass(frozen=True)
class Column:
    """A column of the rows that an audit has recorded, [N]: numbers, or codes of categories."""

    name: str
    kind: Literal["number", "category"]
    values_N: Floats


def recovered(
    z_NF: Floats, columns: Sequence[Column], is_known_N: Bools, seed: int
) -> list[float | None]:
    """The share of each column that a decoder recovers, from 0 to 1; None for a constant column."""
    known = torch.from_numpy(is_known_N)
    x = standardize(torch.from_numpy(z_NF), known)
    numbers = [column.values_N for column in columns if column.kind == "number"]
    categories = [column.values_N for column in columns if column.kind == "category"]
    number_NC = torch.from_numpy(np.stack(numbers, axis=1)) if numbers else x.new_zeros(len(x), 0)
    number_NC = standardize(number_NC, known)
    frequent = [_most_frequent(codes[is_known_N]) for codes in categories]
    value_NC = _positions(categories, frequent, len(x))
    random = torch.Generator().manual_seed(seed)
    num_outputs = number_NC.shape[1] + value_NC.shape[1] * (_VALUES + 1)
    model = Mlp([x.shape[1], _HIDDEN, num_outputs], random)

    def loss(batch: Tensor) -> Tensor:
        estimate_BC, scores_BCV = _split(model(x[batch]), number_NC.shape[1])
        errors = (estimate_BC - number_NC[batch]).square().sum() / len(batch)
        wrong = functional.cross_entropy(
            scores_BCV.flatten(0, 1), value_NC[batch].flatten(), reduction="sum"
        )
        return errors + wrong / len(batch)

    for _ in model.epochs(torch.from_numpy(np.flatnonzero(is_known_N)), loss, _EPOCHS):
        pass
    with torch.no_grad():
        estimate_MC, scores_MCV = _split(model(x[~known]), number_NC.shape[1])
    of_numbers = iter(_explained(estimate_MC, number_NC[~known]))
    guesses_MC = scores_MCV[..., :_VALUES].argmax(-1)
    of_categories = iter(_found(guesses_MC, value_NC[~known]))
    return [next(of_numbers if c.kind == "number" else of_categories) for c in columns]


def _split(outputs_BO: Tensor, num_numbers: int) -> tuple[Tensor, Tensor]:
    """The estimates of numbers, and the scores of the values of each category."""
    scores_BO = outputs_BO[:, num_numbers:]
    return outputs_BO[:, :num_numbers], scores_BO.reshape(len(outputs_BO), -1, _VALUES + 1)


def _most_frequent(codes_N: Floats) -> Floats:
    values, counts = np.unique(codes_N, return_counts=True)
    return values[np.argsort(-counts, kind="stable")][:_VALUES]


def _positions(categories: Sequence[Floats], frequent: Sequence[Floats], rows: int) -> Tensor:
    """Each value's position among the frequent ones of its column, the most frequent first."""
    found = np.full((rows, len(categories)), _VALUES, np.int64)
    for column, (codes_N, values) in enumerate(zip(categories, frequent, strict=True)):
        for position, value in enumerate(values):
            found[codes_N == value, column] = position
    return torch.from_numpy(found)


def _explained(estimate_MC: Tensor, number_MC: Tensor) -> list[float | None]:
    errors_C = (estimate_MC - number_MC).square().sum(0)
    total_C = (number_MC - number_MC.mean(0)).square().sum(0)
    return [
        max(0.0, round(1 - float(e) / float(t), 4)) if t > 0 else None
        for e, t in zip(errors_C, total_C, strict=True)
    ]


def _found(guesses_MC: Tensor, value_MC: Tensor) -> list[float | None]:
    right_C = (guesses_MC == value_MC).double().mean(0)
    mode_C = (value_MC == 0).double().mean(0)
    return [
        max(0.0, round(float((right - mode) / (1 - mode)), 4)) if mode < 1 else None
        for right, mode in zip(right_C, mode_C, strict=True)
    ]
