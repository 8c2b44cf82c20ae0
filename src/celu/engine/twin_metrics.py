"""Metrics of a model against randomized labels, corrected for the labels that changed.

They decide what hosts can see: when training stops, which weights are the best, what `auto`
chooses. Each is an estimate of the metric against the true labels. Of other metrics, such as a
precision, we know no estimate, so they cannot decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from celu.engine.held_out import HeldOutScores
from celu.engine.scores import Scores
from celu.metrics.measure import compute
from celu.metrics.names import LOSS
from celu.models.losses import Loss
from celu.privacy.randomized_response import RandomizedResponse

CORRECTED = ("loss", "log_loss", "auc", "accuracy")


def corrected_metrics(
    loss: Loss, response: RandomizedResponse, scores: Sequence[Scores]
) -> dict[str, float]:
    """The loss, the accuracy, and the AUC of two classes; `loss` is the unbiased one."""
    parts = zip(*((s.output, s.losses_B, s.labels) for s in scores), strict=True)
    output, losses_B, labels = (torch.cat(part) for part in parts)
    held_out = HeldOutScores.of(loss, output, labels)
    names = ["accuracy", *(["auc"] if held_out.output == "binary" else [])]
    found = compute(held_out.output, held_out.scores, held_out.labels, names)
    mean = float(losses_B.double().mean())
    metrics = {
        LOSS: mean,
        "log_loss": mean,
        "accuracy": (found["accuracy"] - response.other) / (response.keep - response.other),
    }
    if "auc" in found:
        share = float((held_out.labels > 0.5).mean())
        metrics["auc"] = corrected_auc(found["auc"], share, response.other, len(labels))
    return metrics


def corrected_auc(auc: float, share: float, q: float, num_rows: int) -> float:
    """The AUC against the true labels, from that against labels of which a share q changed.

    With a the share of true negatives among the rows that are labelled positive, and b that of
    true positives among the others, the AUC above 1/2 shrinks by the factor 1 - a - b (Menon et al.
    2015). `share` is that of randomized positives among `num_rows` rows.
    """
    true = (share - q) / (1 - 2 * q)
    true = min(max(true, 1 / num_rows), 1 - 1 / num_rows)  # by chance it may be outside
    positives = q + (1 - 2 * q) * true
    shrunk = 1 - q * (1 - true) / positives - q * true / (1 - positives)
    return 0.5 + (auc - 0.5) / shrunk
