"""Canaries: training rows whose labels are random, drawn with the audit's key.

Nothing predicts a random label, so what an attack finds of it was leaked by the messages alone.
Held-out rows have no canaries, so metrics do not count them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from celu.audit.sample import RowSample
from celu.metrics.names import Output


def random_labels(sample: RowSample, labels_N: Tensor, kind: Output) -> Tensor:
    """The labels of all training rows, those of the canaries replaced.

    A class is drawn uniformly among the classes of the rows, a number among the labels of all rows.
    """
    count = sample.num_canaries
    random = sample.random("canaries")
    values = labels_N if kind == "regression" else torch.unique(labels_N)
    drawn = torch.from_numpy(random.integers(len(values), size=count)).to(labels_N.device)
    rows = torch.from_numpy(np.asarray(sample.row_numbers[:count])).to(labels_N.device)
    labels = labels_N.clone()
    labels[rows] = values[drawn]
    return labels
