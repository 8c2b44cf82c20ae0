"""From requests to scores: finds the rows, asks the hosts, runs the model, or falls back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from celu.data.dataset import Batch
from celu.errors import DataError, NonFiniteError, RequestError
from celu.serving.batching import Job, Outcome
from celu.serving.host_link import Mask, Result, RowKeys, ZRows
from celu.serving.inference_protocol import Answer
from celu.serving.model_shelf import ServedModel
from celu.serving.row_index import NO_ROW, ServedRows


class ZSource(Protocol):
    """Where the Z of one host comes from."""

    name: str

    def start(self, model: str, keys: RowKeys, deadline_at: float) -> Result:
        """Begin to get Z of some rows; returns a function that waits for it."""
        ...


@dataclass(frozen=True)
class _Rows:
    """The rows of one request, found: the guest's own inputs, and how hosts know them."""

    batch: Batch | None
    fallback_batch: Batch | None
    keys: RowKeys


class Inference:
    """Answers requests together; `serve` returns an outcome for each.

    `current` returns the model to use: one for all rows of a call. `fallback` says what to do where
    a host gives no Z: "mean" is its mean Z, "refuse" an error with status 503, else a model that
    needs no hosts.
    """

    def __init__(
        self,
        current: Callable[[], ServedModel | None],
        rows: ServedRows,
        hosts: Sequence[ZSource],
        fallback: Literal["refuse", "mean"] | ServedModel,
    ) -> None:
        self._current = current
        self._rows = rows
        self._hosts = {host.name: host for host in hosts}
        self._fallback = fallback

    def serve(self, jobs: list[Job]) -> list[Outcome]:
        """The answer of each job, or the error that its client gets."""
        served = self._current()
        if served is None:
            return [RequestError("no model is loaded yet; retry later", status=503) for _ in jobs]
        found: list[_Rows | Exception] = []
        for job in jobs:
            try:
                found.append(self._find(served, job))
            except (RequestError, DataError) as error:
                found.append(error)
        ready = [rows for rows in found if isinstance(rows, _Rows)]
        if not ready:
            return [rows for rows in found if isinstance(rows, Exception)]
        deadline_at = min(job.deadline_at for job in jobs)
        scores, missing = self._score(served, ready, deadline_at)
        outcomes: list[Outcome] = []
        start = 0
        for rows in found:
            if isinstance(rows, Exception):
                outcomes.append(rows)
                continue
            stop = start + len(rows.keys)
            outcomes.append(self._answer(served, scores[start:stop], missing[start:stop]))
            start = stop
        return outcomes

    def _answer(self, served: ServedModel, scores: Tensor, missing: list[list[str]]) -> Outcome:
        if self._fallback == "refuse" and any(missing):
            hosts = sorted({host for row in missing for host in row})
            return RequestError(f"no answer for a row from: {', '.join(hosts)}", status=503)
        if not bool(torch.isfinite(scores).all()):
            return NonFiniteError("a score is NaN or Inf; look for extreme values in the inputs")
        return Answer(served.name, scores.tolist(), missing)

    def _find(self, served: ServedModel, job: Job) -> _Rows:
        """Find the rows of a request; raises RequestError for an id that is not in the store."""
        request = job.request
        tags = self._rows.tags_of(request.ids)
        rows = self._rows.find(tags)
        keys = RowKeys(self._rows.numbers(rows), tags)
        fallback = self._fallback if isinstance(self._fallback, ServedModel) else None
        if request.values is not None:
            return _Rows(
                _encode(served, request.values),
                None if fallback is None else _encode(fallback, request.values),
                keys,
            )
        unknown = np.flatnonzero(rows == NO_ROW)
        if len(unknown) and (served.rows.dataset is not None or fallback is not None):
            raise RequestError(
                f"inputs.id: row {unknown[0]} and {len(unknown) - 1} others are not in the store; "
                "send the features of new rows in the request",
                status=404,
            )
        return _Rows(
            served.rows.take(rows), None if fallback is None else fallback.rows.take(rows), keys
        )

    def _score(
        self, served: ServedModel, found: list[_Rows], deadline_at: float
    ) -> tuple[Tensor, list[list[str]]]:
        """Scores of all rows, [n] or [n, K], and the hosts that gave no Z for each."""
        keys = RowKeys(
            np.concatenate([rows.keys.numbers for rows in found]),
            np.concatenate([rows.keys.tags for rows in found]),
        )
        names = list(served.model.facts.hosts)
        started = {n: self._hosts[n].start(served.name, keys, deadline_at) for n in names}
        batch = _join([rows.batch for rows in found])
        own_z = served.model.own_z(batch)  # while the asks are in flight
        z_of_hosts: list[Tensor] = []
        missing: list[list[str]] = [[] for _ in range(len(keys))]
        for name in names:
            filled, lacking = _fill(served, name, started[name]())
            z_of_hosts.append(filled)
            for row in np.flatnonzero(lacking).tolist():
                missing[row].append(name)
        scores = served.model.top_scores(own_z, z_of_hosts)
        degraded = [row for row, hosts in enumerate(missing) if hosts]
        if degraded and isinstance(self._fallback, ServedModel):
            index = torch.tensor(degraded)
            rows = _join([rows.fallback_batch for rows in found])
            assert rows is not None  # a model without hosts has features
            part = Batch({n: t[index] for n, t in rows.inputs.items()}, None, rows.tags[degraded])
            scores = scores.clone()
            scores[index] = self._fallback.model.scores(part, []).to(scores.dtype)
        return scores, missing


def _encode(served: ServedModel, values: dict[str, list[object]]) -> Batch | None:
    if served.encoder is None or not served.model.facts.inputs:
        return None
    unknown = sorted(values.keys() - served.encoder.columns.keys())
    if unknown:
        raise RequestError(f"inputs.{unknown[0][:100]!r}: the model has no such column")
    return served.encoder.encode(values)


def _fill(served: ServedModel, host: str, found: ZRows) -> tuple[Tensor, Mask]:
    """A host's Z with its mean where there is none, and where that is."""
    if found.z_ND is not None and found.has_z.all():
        return found.z_ND, ~found.has_z
    z_BD = torch.tensor(served.model.facts.mean_z[host]).repeat(len(found.has_z), 1)
    if found.z_ND is not None:
        z_BD[torch.from_numpy(found.has_z)] = found.z_ND
    return z_BD, ~found.has_z


def _join(batches: Sequence[Batch | None]) -> Batch | None:
    found = [batch for batch in batches if batch is not None]
    if len(found) < len(batches) or not found:
        return None
    if len(found) == 1:
        return found[0]
    inputs = {n: torch.cat([b.inputs[n] for b in found]) for n in found[0].inputs}
    return Batch(inputs, None, np.zeros((sum(len(b.tags) for b in found), 0), np.uint8))
