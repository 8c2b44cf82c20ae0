"""Scores and labels for tests, as arrays and as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from celu.metrics.names import Output
from celu.scores.file import ScoreWriter

Array = npt.NDArray[Any]


def binary(num_rows: int = 2000, *, digits: int = 2, seed: int = 0) -> tuple[Array, Array]:
    """Scores with many ties, and labels that follow them."""
    random = np.random.default_rng(seed)
    scores = random.beta(1.2, 3, num_rows).round(digits)
    return scores, (random.random(num_rows) < scores).astype(np.float64)


def multiclass(num_rows: int = 1500, num_classes: int = 4, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    scores = random.dirichlet(np.ones(num_classes), num_rows)
    return scores, np.array([random.choice(num_classes, p=p / p.sum()) for p in scores], float)


def regression(num_rows: int = 1500, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    scores = random.normal(1e4, 3, num_rows)
    return scores, scores + random.normal(0, 2, num_rows)


def ids(num_rows: int) -> list[str]:
    return [f"person-{row:05}" for row in range(num_rows)]


def write_scores(
    path: Path,
    scores: Array,
    *,
    output: Output = "binary",
    rows: Sequence[str] | None = None,
    model: str = "joint",
    fallback: Array | None = None,
) -> Path:
    num_classes = scores.shape[1] if scores.ndim > 1 else None
    flags = np.zeros(len(scores), np.bool_) if fallback is None else fallback
    with ScoreWriter(path, model=model, output=output, num_classes=num_classes) as file:
        for start in range(0, len(scores), 700):  # in batches, as a model scores rows
            part = slice(start, start + 700)
            hosts = ["" if flag else "bank,shop" for flag in flags[part]]
            file.write((rows or ids(len(scores)))[part], scores[part], hosts, flags[part])
    return path


def write_labels(path: Path, labels: Array, **columns: Any) -> Path:
    pq.write_table(pa.table({"id": ids(len(labels)), "label": labels, **columns}), path)
    return path
