"""`celu.predict`: scores of rows in one process, from all parts of a model.

It runs the same programs as over a network, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from celu.config.reading import validate
from celu.config.schema import ID, ClassLabel
from celu.config.serving import Serving
from celu.data.alignment import Alignment, read_alignment
from celu.data.dataset import Batch, Dataset
from celu.data.store import Store
from celu.errors import ConfigError, DataError
from celu.events import Callback, call_all, ignore
from celu.metrics.names import Output
from celu.scores.file import ScoreWriter
from celu.serving.model import Model
from celu.serving.predict_session import (
    Scored,
    ScoreSink,
    check_model,
    predict_guest,
    predict_host,
    score_unaligned,
)
from celu.serving.rows import ChunkPlan, DatasetRows, RowSource, StoreRows
from celu.transport.memory import memory_links, run_together

# Chunks that a host computes before the guest scores them: few, so that they stay in the cache.
_AHEAD = 8
Fallback = Literal["mean", "refuse"]
Rows = Dataset | Store
# A host's part of the model, its rows, and the alignment of a store.
HostRows = tuple[Model, Rows] | tuple[Model, Store, Alignment | Path | str | None]


@dataclass(frozen=True)
class Predictions:
    """The scores of rows: [N], or [N, K] probabilities of K classes.

    `classes` are those of the labels, in this order; of two, a score is the probability of the
    second. None: they are the codes from 0, or the model predicts a number.
    `fallback` says for which rows the mean Z of the hosts stands in for rows that they lack.
    """

    model: str
    output: Output
    given_ids: Any  # an Arrow array of strings; None for numbered rows
    scores: npt.NDArray[np.float64]
    fallback: npt.NDArray[np.bool_]
    hosts: tuple[str, ...]
    classes: tuple[ClassLabel, ...] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @cached_property
    def arrow_ids(self) -> Any:
        """The ids of the rows, as an Arrow array of strings."""
        import pyarrow as pa

        if self.given_ids is None:
            return pa.array(np.arange(len(self))).cast(pa.string())
        return self.given_ids

    @cached_property
    def ids(self) -> npt.NDArray[np.object_]:
        """The ids of the rows, as Python strings; made when first used."""
        texts: npt.NDArray[np.object_] = self.arrow_ids.to_numpy(zero_copy_only=False)
        return texts

    def write(self, path: Path | str) -> None:
        """Write a scores file; raises ConfigError, or DataError for repeated ids."""
        names = ",".join(self.hosts)
        with ScoreWriter(
            Path(path),
            model=self.model,
            output=self.output,
            num_classes=self.scores.shape[1] if self.scores.ndim > 1 else None,
            classes=self.classes,
        ) as file:
            file.write(
                self.arrow_ids, self.scores, ["" if f else names for f in self.fallback],
                self.fallback,
            )  # fmt: skip


def predict(
    model: Model,
    rows: Rows,
    hosts: Mapping[str, HostRows] | None = None,
    *,
    alignment: Alignment | Path | str | None = None,
    ids: Sequence[str] | None = None,
    chunk_rows: int = 512,
    codec: str = "fp32",
    fallback: Fallback = "mean",
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
) -> Predictions:
    """Score rows with the guest's part of a model and those of all hosts, in this process.

    `rows` are a Dataset, or a store with its `alignment`; without one, all parties have the same
    rows in the same order. `hosts` maps each host's name to its part and its rows:
    `hosts={"weather": (part, dataset)}`, or `(part, store, alignment)`. `ids` name the rows of a
    Dataset; by default they are numbered. With `fallback="refuse"`, rows of a store that are not
    aligned are left out. With `out`, a scores file is written too. Raises CeluError.
    """
    hosts = dict(hosts or {})
    values = {
        "guest": model.facts.guest,
        "hosts": list(hosts),
        "chunk_rows": chunk_rows,
        "codec": codec,
    }
    serving = validate(Serving, values, Path("celu.predict"))
    if fallback not in ("mean", "refuse"):
        raise ConfigError(f"fallback: expected 'mean' or 'refuse', got {fallback!r}")
    check_model(model, serving, serving.guest)
    own = _source(model, rows, alignment, chunk_rows, ids, unaligned=fallback == "mean")
    parts: dict[str, tuple[Model, RowSource]] = {}
    for name, (part, host_rows, *host_alignment) in hosts.items():
        check_model(part, serving, name)
        given = host_alignment[0] if host_alignment else None
        parts[name] = part, _source(part, host_rows, given, chunk_rows, None, unaligned=False)
    sink = _Arrays()
    predict_together(serving, model, own, parts, sink, call_all(callbacks))
    found = sink.predictions(model)
    if out is not None:
        found.write(out)
    return found


def predict_together(
    serving: Serving,
    model: Model,
    rows: RowSource,
    hosts: Mapping[str, tuple[Model, RowSource]],
    sink: ScoreSink,
    emit: Callback,
) -> None:
    """Run the programs of all parties in this thread; the scores go to `sink`."""
    pairs = {name: memory_links(serving.guest, name, capacity=_AHEAD) for name in hosts}
    programs: dict[str, Coroutine[Any, Any, None]] = {
        name: predict_host(name, part, source, serving, pairs[name][1], ignore)
        for name, (part, source) in hosts.items()
    }
    links = {name: pair[0] for name, pair in pairs.items()}
    programs[serving.guest] = predict_guest(serving.guest, model, rows, serving, links, sink, emit)
    run_together(programs, list(links.values()))
    score_unaligned(model, rows, sink, emit)


def num_classes(model: Model) -> int | None:
    """The number of classes of a multiclass model, from the scores of a row of zeros."""
    facts = model.facts
    if facts.output != "multiclass":
        return None
    inputs = {name: spec.zeros(1) for name, spec in facts.input_specs.items()}
    mean_z = model.fallback_z(1)
    batch = Batch(inputs, None, np.zeros((1, 8), np.uint8))
    return model.scores(batch, [mean_z[host] for host in facts.hosts]).shape[1]


def _source(
    model: Model,
    rows: Rows,
    alignment: Alignment | Path | str | None,
    chunk_rows: int,
    ids: Sequence[str] | None,
    *,
    unaligned: bool,
) -> RowSource:
    import pyarrow as pa

    if isinstance(rows, Store):
        if ids is not None:
            raise ConfigError(f"ids: expected none for a store, which has a column {ID!r}")
        if isinstance(alignment, str | Path):
            alignment = read_alignment(alignment, rows)
        return StoreRows(rows, model, alignment, chunk_rows, unaligned=unaligned)
    if alignment is not None:
        raise ConfigError("alignment: expected none for a Dataset, which has the aligned rows")
    model.check_rows(rows, f"the rows of {model.facts.party}")
    if ids is not None and len(ids) != rows.num_rows:
        raise DataError(f"ids: expected one for each of {rows.num_rows:,} rows, got {len(ids):,}")
    if ids is None:
        return DatasetRows({"test": rows}, chunk_rows)
    return DatasetRows({"test": rows}, chunk_rows, ids={"test": pa.array(ids).cast(pa.string())})


class _Arrays:
    """A sink in memory."""

    next_chunk = 0  # nothing is saved

    def __init__(self) -> None:
        self._scored: list[Scored] = []

    def begin(self, work: Mapping[str, Any], plan: ChunkPlan) -> int:
        """See `ScoreSink`."""
        return 0

    def add(self, scored: Scored) -> None:
        """See `ScoreSink`."""
        self._scored.append(scored)

    def predictions(self, model: Model) -> Predictions:
        assert model.facts.output is not None  # a guest's part has it
        classes = num_classes(model)
        empty = np.zeros((0,) if classes is None else (0, classes))
        scores = [s.scores.numpy() for s in self._scored]
        flags = np.array([s.is_fallback for s in self._scored], np.bool_)
        return Predictions(
            model.name,
            model.facts.output,
            self._ids(),
            np.concatenate([empty, *scores]),
            np.repeat(flags, [len(part) for part in scores]),
            tuple(model.facts.hosts),
            model.facts.label_map.names,
        )

    def _ids(self) -> Any:
        import pyarrow as pa

        parts = [s.ids for s in self._scored]
        if parts and parts[0] is None:
            return None
        return pa.chunked_array(parts, pa.string()).combine_chunks()
