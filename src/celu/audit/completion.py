"""Model completion: a host that knows a few labels trains a head on its own Z.

Fu et al., "Label Inference Attacks Against Vertical Federated Learning" (USENIX Security 2022). A
host's features may predict labels by themselves, so the AUC on rows that training has not seen
stands beside that on training rows: the gap is what training has put into Z.
"""

from __future__ import annotations

import numpy as np

from celu.audit.leak import Bools, Floats, measure
from celu.audit.learner import linear
from celu.audit.result import Completion

KNOWN = 100
_DRAWS = 3  # of the known rows; figures are means over them
_L2 = 0.02


def complete(
    z_ND: Floats,
    labels_N: Floats,
    is_canary_N: Bools,
    unseen_MD: Floats,
    unseen_labels_M: Floats,
    num_classes: int,
    random: np.random.Generator,
) -> Completion | None:
    """Fit a head on `KNOWN` training rows; None if there are too few rows besides."""
    candidates = np.flatnonzero(~is_canary_N)
    if len(candidates) < 3 * KNOWN:
        return None
    x_AD = np.concatenate([z_ND, unseen_MD])
    labels_A = np.concatenate([labels_N, unseen_labels_M])
    part_A = np.concatenate([np.where(is_canary_N, 1, 0), np.full(len(unseen_MD), 2)])
    found: list[list[float | None]] = [[], [], []]
    for _ in range(_DRAWS):
        known_A = np.zeros(len(x_AD), np.bool_)
        known_A[random.choice(candidates, KNOWN, replace=False)] = True
        scores_AC = linear(x_AD, labels_A, known_A, num_classes, _L2)
        is_class_AC = one_per_class(labels_A, num_classes)
        for part, values in enumerate(found):
            rows = (part_A == part) & ~known_A
            values.append(measure(scores_AC[rows], is_class_AC[rows], None).auc)
    exposed, canary, unseen = (_mean(values) for values in found)
    gap = None if exposed is None or unseen is None else round(exposed - unseen, 4)
    return Completion(
        known=KNOWN, exposed_auc=exposed, unseen_auc=unseen, gap=gap, canary_auc=canary
    )


def one_per_class(labels_N: Floats, num_classes: int) -> Bools:
    """Whether each row has each class, [N, C]; of two classes, only the second has a column."""
    classes = np.arange(1, 2) if num_classes == 2 else np.arange(num_classes)
    found: Bools = labels_N[:, None] == classes
    return found


def _mean(values: list[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return round(float(np.mean(defined)), 4) if defined else None
