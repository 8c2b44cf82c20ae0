"""From requests to scores: finds the rows, asks the hosts, runs the model, or falls back.

`begin` never waits. What it returns has the outcomes, and says which asks they wait for. Scores
that are known in advance need neither hosts nor the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from celu.errors import DataError, NonFiniteError, RequestError
from celu.serving.batching import Job, Outcome
from celu.serving.few_rows import Array, to_arrays, to_batch
from celu.serving.host_link import Result, RowKeys, ZRows
from celu.serving.inference_protocol import Answer
from celu.serving.model_shelf import ServedModel
from celu.serving.row_index import NO_ROW, Arrays, ServedRows
from celu.transport.asker import Call


class KnownScores(Protocol):
    """Scores that were computed in advance."""

    def find(self, served: ServedModel, numbers: Sequence[int]) -> list[Any] | None:
        """The scores of rows of the alignment; None if they are not known."""
        ...


class ZSource(Protocol):
    """Where the Z of one host comes from."""

    name: str

    def start(self, model: str, keys: RowKeys, deadline_at: float) -> Result:
        """Begin to get Z of some rows."""
        ...


@dataclass(slots=True)
class _Rows:
    """The rows of one request, found: the guest's own inputs, and how hosts know them."""

    inputs: Arrays | None
    fallback_inputs: Arrays | None
    keys: RowKeys


Found = _Rows | Outcome  # an outcome without any work


@dataclass(slots=True)
class Begun:
    """Requests whose rows were found, all for one model, and whose hosts were asked.

    `outcomes` waits for `calls`, until `deadline_at`. When these have finished, it waits only if
    `asks_again`.
    """

    served: ServedModel
    found: list[Found]
    ready: list[_Rows]  # those of `found` that are no outcomes
    deadline_at: float
    fallback: Literal["refuse", "mean"] | ServedModel
    results: dict[str, Result]  # by host
    calls: list[Call]  # the asks in flight
    own_z: list[Array] | None = None  # computed last if it is quick: first, it would delay asks

    def asks_again(self) -> bool:
        """Whether `outcomes` asks a host for single rows of an ask that it refused."""
        return any(result.asks_again() for result in self.results.values())

    def outcomes(self) -> list[Outcome]:
        """The answer of each request, or the error that its client gets."""
        if not self.ready:
            return [rows for rows in self.found if not isinstance(rows, _Rows)]
        scores, missing = self._score(self.ready)
        if len(self.found) == 1:
            return [self._answer(scores, missing)]
        outcomes: list[Outcome] = []
        start = 0
        for rows in self.found:
            if not isinstance(rows, _Rows):
                outcomes.append(rows)
                continue
            stop = start + len(rows.keys)
            outcomes.append(self._answer(scores[start:stop], missing[start:stop]))
            start = stop
        return outcomes

    def _answer(self, scores: list[Any], missing: list[list[str]]) -> Outcome:
        if self.fallback == "refuse" and any(missing):
            hosts = sorted({host for row in missing for host in row})
            return RequestError(f"no answer for a row from: {', '.join(hosts)}", status=503)
        return _checked_answer(self.served, scores, missing)

    def _score(self, ready: list[_Rows]) -> tuple[list[Any], list[list[str]]]:
        """Scores of all rows, [n] or [n, K], and the hosts that gave no Z for each."""
        z_of_hosts: list[Array] = []
        missing: list[list[str]] = []
        for rows in ready:
            missing += [[] for _ in rows.keys.numbers]
        for host, result in self.results.items():
            found = result.get()
            if found.z_ND is not None and len(found.z_ND) == len(missing):
                z_of_hosts.append(found.z_ND)
                continue
            z_of_hosts.append(_fill(self.served, host, found))
            for hosts, has_z in zip(missing, found.has_z, strict=True):
                if not has_z:
                    hosts.append(host)
        own_z, few_rows = self.own_z, self.served.few_rows
        with np.errstate(all="ignore"):  # `_answer` checks the scores
            if own_z is None:
                own_z = few_rows.own_z(_join_inputs(ready))
            scores = few_rows.scores(own_z, z_of_hosts)
        if any(missing) and isinstance(self.fallback, ServedModel):
            degraded = [row for row, hosts in enumerate(missing) if hosts]
            inputs = _join([rows.fallback_inputs for rows in ready])
            assert inputs is not None  # a model without hosts has features
            part = to_batch({name: array[degraded] for name, array in inputs.items()})
            others = self.fallback.model.scores(part, []).tolist()
            for row, score in zip(degraded, others, strict=True):
                scores[row] = score
        return scores, missing


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
        known: KnownScores | None = None,
    ) -> None:
        self._current = current
        self._known = known
        self._rows = rows
        self._hosts = {host.name: host for host in hosts}
        self._fallback = fallback

    def serve(self, jobs: list[Job]) -> list[Outcome]:
        """The answer of each job, or the error that its client gets."""
        try:
            return self.begin(jobs).outcomes()
        except RequestError as error:
            return [error] * len(jobs)

    def begin(self, jobs: list[Job]) -> Begun:
        """Find the rows of jobs and ask the hosts for them; raises RequestError without a model."""
        served = self._current()
        if served is None:
            raise RequestError("no model is loaded yet; retry later", status=503)
        found: list[Found] = []
        ready: list[_Rows] = []
        for job in jobs:
            try:
                rows = self._find(served, job)
            except (RequestError, DataError) as error:
                rows = error
            found.append(rows)
            if isinstance(rows, _Rows):
                ready.append(rows)
        deadline_at = min([job.deadline_at for job in jobs])
        results: dict[str, Result] = {}
        calls: list[Call] = []
        begun = Begun(served, found, ready, deadline_at, self._fallback, results, calls)
        if ready:
            keys = ready[0].keys if len(ready) == 1 else _join_keys([rows.keys for rows in ready])
            for name in served.model.facts.hosts:
                result = self._hosts[name].start(served.name, keys, deadline_at)
                results[name] = result
                if result.call is not None:
                    calls.append(result.call)
            if not served.few_rows.is_quick(len(keys)):  # compute while the asks are in flight
                begun.own_z = served.few_rows.own_z(_join_inputs(ready))
        return begun

    def _find(self, served: ServedModel, job: Job) -> Found:
        """Find the rows of a request, or their scores.

        Raises RequestError for an id that is not in the store.
        """
        request = job.request
        rows, numbers, tags = self._rows.locate(request.ids)
        if self._known is not None and request.values is None and NO_ROW not in numbers:
            scores = self._known.find(served, numbers)
            if scores is not None:
                return _checked_answer(served, scores, [[] for _ in numbers])
        keys = RowKeys(numbers, tags)
        fallback = self._fallback if isinstance(self._fallback, ServedModel) else None
        if request.values is not None:
            return _Rows(
                _encode(served, request.values),
                None if fallback is None else _encode(fallback, request.values),
                keys,
            )
        if NO_ROW in rows and (served.rows.dataset is not None or fallback is not None):
            unknown = [place for place, row in enumerate(rows) if row == NO_ROW]
            raise RequestError(
                f"inputs.id: row {unknown[0]} and {len(unknown) - 1} others are not in the store; "
                "send the features of new rows in the request",
                status=404,
            )
        return _Rows(
            served.rows.take(rows), None if fallback is None else fallback.rows.take(rows), keys
        )


def _checked_answer(served: ServedModel, scores: list[Any], missing: list[list[str]]) -> Outcome:
    numbers = scores if isinstance(scores[0], float) else [x for row in scores for x in row]
    if not all(map(math.isfinite, numbers)):
        return NonFiniteError("a score is NaN or Inf; look for extreme values in the inputs")
    return Answer(served.name, scores, missing, served.class_names)


def _encode(served: ServedModel, values: dict[str, list[object]]) -> Arrays | None:
    if served.encoder is None or not served.model.facts.inputs:
        return None
    unknown = sorted(values.keys() - served.encoder.columns.keys())
    if unknown:
        raise RequestError(f"inputs.{unknown[0][:100]!r}: the model has no such column")
    return to_arrays(served.encoder.encode(values))


def _fill(served: ServedModel, host: str, found: ZRows) -> Array:
    """A host's Z with its mean where there is none."""
    mean_z = np.array(served.model.facts.mean_z[host], np.float32)
    z_BD = np.tile(mean_z, (len(found.has_z), 1))
    if found.z_ND is not None:
        z_BD[found.has_z] = found.z_ND
    return z_BD


def _join_inputs(ready: Sequence[_Rows]) -> Arrays | None:
    return ready[0].inputs if len(ready) == 1 else _join([rows.inputs for rows in ready])


def _join(inputs: Sequence[Arrays | None]) -> Arrays | None:
    found = [one for one in inputs if one is not None]
    if len(found) < len(inputs) or not found:
        return None
    if len(found) == 1:
        return found[0]
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _join_keys(keys: Sequence[RowKeys]) -> RowKeys:
    numbers = [number for one in keys for number in one.numbers]
    return RowKeys(numbers, [tag for one in keys for tag in one.tags])
