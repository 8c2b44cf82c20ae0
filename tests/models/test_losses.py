"""Metrics: a model whose output is not a number has none."""

from __future__ import annotations

import math

import pytest
import torch

from celu.models.losses import LOSSES, auc


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("name", list(LOSSES))
def test_a_nan_score_makes_every_metric_nan(name: str, at: int) -> None:
    labels = torch.tensor([0.0, 1.0, 0.0, 1.0])
    output = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]])
    output = output if name == "multiclass" else output[:, :1].clone()
    assert all(math.isfinite(value) for value in LOSSES[name].metrics(output, labels).values())
    output[at] = math.nan
    metrics = LOSSES[name].metrics(output, labels)
    assert metrics and all(math.isnan(value) for value in metrics.values())


def test_infinite_scores_still_have_an_order() -> None:
    scores = torch.tensor([-math.inf, 0.0, 1.0, math.inf])
    assert auc(scores, torch.tensor([0.0, 0.0, 1.0, 1.0])) == 1.0
