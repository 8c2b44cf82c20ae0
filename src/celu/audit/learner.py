"""Attacks that learn from known labels: a logistic regression and a small network.

Both return one score per row for two classes, else one for each class. They use a generator of
their own, so an audit does not change the randomness of anything else.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from celu.audit.leak import Bools, Floats
from celu.audit.mlp import Mlp

_HIDDEN = 48
_EPOCHS = 10
_L2 = 1e-3


def standardize(x_NF: Tensor, is_known_N: Tensor) -> Tensor:
    """Columns with mean 0 and deviation 1 over the known rows; a constant column becomes 0."""
    x_NF = x_NF.double()
    if not x_NF.shape[1]:  # torch would warn
        return x_NF.float()
    mean_F, deviation_F = x_NF[is_known_N].mean(0), x_NF[is_known_N].std(0, correction=0)
    # Extreme rows would decide a fit by themselves.
    scaled = (x_NF - mean_F) / torch.where(deviation_F > 0, deviation_F, 1.0)
    return scaled.clamp(-10, 10).float()


def linear(
    x_NF: Floats, labels_N: Floats, is_known_N: Bools, num_classes: int, l2: float = 1e-3
) -> Floats:
    """The scores of a logistic regression that is fitted on the known rows."""
    known = torch.from_numpy(is_known_N)
    x = standardize(torch.from_numpy(x_NF), known)
    return _fit_linear(x, torch.from_numpy(labels_N).long(), known, num_classes, l2).numpy()


def network(
    x_NF: Floats, labels_N: Floats, is_known_N: Bools, num_classes: int, seed: int
) -> Floats:
    """The scores of a network with two hidden layers that is trained on the known rows.

    It corrects the scores of a logistic regression, and sees the norm of each row besides. A fifth
    of the known rows chooses the epoch; epoch 0 is the logistic regression.
    """
    random = torch.Generator().manual_seed(seed)
    rows = torch.from_numpy(np.flatnonzero(is_known_N))
    rows = rows[torch.randperm(len(rows), generator=random)]
    chosen_by, rows = rows[: len(rows) // 5], rows[len(rows) // 5 :]
    fitted = torch.zeros(len(x_NF), dtype=torch.bool)
    fitted[rows] = True
    x = torch.from_numpy(x_NF).double()
    norms = x.norm(dim=1, keepdim=True).clamp(min=1e-30).log()
    x = standardize(torch.cat([x, norms], dim=1), fitted)
    labels = torch.from_numpy(labels_N).long()
    base = _fit_linear(x, labels, fitted, num_classes, _L2)
    model = Mlp([x.shape[1], _HIDDEN, _HIDDEN, base.shape[1]], random)
    best, scores = float(_loss(base[chosen_by], labels[chosen_by])), base

    def loss(batch: Tensor) -> Tensor:
        return _loss(base[batch] + model(x[batch]), labels[batch])

    for _ in model.epochs(rows, loss, _EPOCHS):
        with torch.no_grad():
            value = float(loss(chosen_by))
            if value < best:
                best, scores = value, base + model(x)
    return scores.numpy()


def _fit_linear(
    x_NF: Tensor, labels_N: Tensor, is_known_N: Tensor, num_classes: int, l2: float
) -> Tensor:
    num_outputs = 1 if num_classes == 2 else num_classes
    weights = torch.zeros(x_NF.shape[1], num_outputs, requires_grad=True)
    bias = torch.zeros(num_outputs, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=60, line_search_fn="strong_wolfe")
    x_known, labels_known = x_NF[is_known_N], labels_N[is_known_N]

    def loss() -> float:
        optimizer.zero_grad()
        value = _loss(x_known @ weights + bias, labels_known) + l2 * weights.square().sum()
        value.backward()
        return float(value.detach())

    optimizer.step(loss)
    with torch.no_grad():
        return x_NF @ weights + bias


def _loss(scores_BC: Tensor, labels_B: Tensor) -> Tensor:
    if scores_BC.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(scores_BC[:, 0], labels_B.float())
    return functional.cross_entropy(scores_BC, labels_B)
