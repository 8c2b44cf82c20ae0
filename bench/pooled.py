"""What a federated model is compared with: the same model, and LightGBM, on the joined table.

Neither uses anything of the engine: a plain PyTorch loop, and gradient-boosted trees. Both choose
on validation rows, and are scored on test rows. The loop draws batches in the order of a federated
run, so that both differ by what federation does and not by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import celu
from bench.tables import TabularSet
from celu.data.order import BatchOrder
from celu.engine.device import device_of
from celu.errors import ConfigError
from celu.metrics.ranking import Ranking

torch.sparse.check_sparse_tensor_invariants.disable()  # torch warns if it is not set
_CHUNK = 8192  # rows that are scored at a time


class Scored(NamedTuple):
    """The AUC of validation rows, by which something is chosen, and that of test rows."""

    validation: float
    test: float


def auc(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """The area under the ROC curve."""
    weights = np.ones((len(scores), 1), np.uint8)
    return float(Ranking(scores, labels > 0.5).measure(weights)["auc"][0])


def _score(scores: npt.NDArray[Any], table: TabularSet) -> Scored:
    """The AUC of both parts of the held-out rows."""
    labels, first_test = table.held_out_labels, table.first_test
    return Scored(
        auc(scores[:first_test], labels[:first_test]), auc(scores[first_test:], labels[first_test:])
    )


def train_pooled(
    table: TabularSet,
    guest: nn.Module,
    host: nn.Module,
    top: nn.Module,
    job: celu.Job,
) -> Scored:
    """Train the three modules as one model in one process, one update for each batch.

    The optimizer, the batch size and the patience are the job's, and it makes as many updates as
    the job's guest, local ones included. Of the model at each evaluation, the one with the best
    validation AUC counts. All of it is on the modules' device.
    """
    rounds = job.num_rounds(table.guest.train.num_rows // job.batch_size)
    _, updates_per_round = job.tuning().for_role("guest")
    updates, every = rounds * updates_per_round, job.evaluation.every * updates_per_round
    whole = nn.ModuleList([guest, host, top])
    device = device_of(whole)
    optimizers = _optimizers(whole, job)
    is_cosine = job.optimizer.schedule == "cosine"
    schedules = [LambdaLR(o, partial(_cosine, updates)) for o in optimizers if is_cosine]
    rows, held_out = (
        [dataset.to(device) for dataset in _joined(table, part)] for part in ("train", "held_out")
    )
    labels = rows[0].labels
    assert labels is not None
    order = BatchOrder(job.seed, len(labels), job.batch_size)
    torch.manual_seed(job.seed)  # for dropout
    best, num_worse = Scored(0.0, 0.0), 0
    for number in range(1, updates + 1):
        batch = order.rows(number - 1)
        output_BM = _forward(whole, rows, batch)
        repeated = labels[batch.to(device)].float().repeat_interleave(output_BM.shape[1])
        losses = F.binary_cross_entropy_with_logits(output_BM.flatten(), repeated, reduction="none")
        losses.view_as(output_BM).mean(dim=1).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()
        if number % every == 0 or number == updates:
            whole.eval()
            with torch.no_grad():
                chunks = torch.arange(table.guest.held_out.num_rows).split(_CHUNK)
                output = torch.cat([_forward(whole, held_out, chunk) for chunk in chunks])
            whole.train()
            found = _score(output[:, 0].cpu().numpy(), table)
            is_better = found.validation > best.validation  # test rows do not break ties
            best, num_worse = (found, 0) if is_better else (best, num_worse + 1)
            if num_worse == job.evaluation.patience:
                break
    return best


def _cosine(updates: int, done: int) -> float:
    """The factor of the learning rate after some updates."""
    return (1 + math.cos(math.pi * done / updates)) / 2


def _joined(table: TabularSet, part: str) -> list[celu.Dataset]:
    return [getattr(table.guest, part), getattr(table.host, part)]


def _forward(whole: nn.ModuleList, rows: Sequence[celu.Dataset], batch: Tensor) -> Tensor:
    """The logits of the top, or in training of each of its members, [B, members]."""
    *bottoms, top = whole
    zs = [
        bottom(**dataset.take(batch).inputs) for bottom, dataset in zip(bottoms, rows, strict=True)
    ]
    output: Tensor = top(*zs)
    return output.reshape(len(batch), -1)


def _optimizers(whole: nn.Module, job: celu.Job) -> list[torch.optim.Optimizer]:
    sparse = [m.weight for m in whole.modules() if isinstance(m, nn.Embedding) and m.sparse]
    known = {id(weight) for weight in sparse}
    dense = [weight for weight in whole.parameters() if id(weight) not in known]
    lr = job.optimizer.lr
    if job.optimizer.name == "adagrad":
        return [torch.optim.Adagrad(dense + sparse, lr=lr)]
    found: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=lr)]
    return found + ([torch.optim.SparseAdam(sparse, lr=lr)] if sparse else [])


# How trees see the codes of categories, and how large the trees are: chosen on validation rows.
_CATEGORICAL, _ORDERED = "categorical", "ordered"
_SETTINGS = {
    "objective": "binary",
    "metric": "auc",
    "learning_rate": 0.1,
    "bagging_fraction": 0.9,
    "bagging_freq": 1,
    "feature_fraction": 0.8,
    "cat_smooth": 20,
    "num_threads": 1,
    "verbose": -1,
}
_TREES = ((_CATEGORICAL, 63), (_ORDERED, 63), (_CATEGORICAL, 15))


def train_lightgbm(table: TabularSet, seed: int) -> tuple[Scored, str]:
    """LightGBM's best of three settings, each with early stopping, and which one that was.

    That one is named by how it sees codes, and the number of leaves.

    Raises ConfigError if the package is not installed.
    """
    try:
        import lightgbm
    except ImportError as error:
        raise ConfigError(
            "this bench needs the package lightgbm, which is not installed; run: "
            'pip install "celu[tabular]"'
        ) from error
    (rows, codes), (held_out, _) = _matrix(table, "train"), _matrix(table, "held_out")
    labels = table.guest.train.labels
    assert labels is not None
    first_test = table.first_test
    found: list[tuple[Scored, str]] = []
    for how, leaves in _TREES:
        training = lightgbm.Dataset(
            rows, labels.numpy(), categorical_feature=codes if how == _CATEGORICAL else []
        )
        validation = training.create_valid(
            held_out[:first_test], table.held_out_labels[:first_test]
        )
        model = lightgbm.train(
            {**_SETTINGS, "num_leaves": leaves, "seed": seed},
            training,
            num_boost_round=1000,
            valid_sets=[validation],
            callbacks=[lightgbm.early_stopping(30, verbose=False)],
        )
        found.append((_score(np.asarray(model.predict(held_out)), table), f"{how}, {leaves}"))
    return max(found)


def _matrix(table: TabularSet, part: str) -> tuple[npt.NDArray[np.float64], list[int]]:
    """All columns of both parties, and the numbers of those that are codes."""
    columns: list[npt.NDArray[np.float64]] = []
    codes: list[int] = []
    for dataset in _joined(table, part):
        for name, tensor in dataset.inputs.items():
            if name in dataset.sizes:
                codes += range(len(columns), len(columns) + tensor.shape[1])
            columns += list(tensor.numpy().T.astype(np.float64))
    return np.stack(columns, axis=1), codes
