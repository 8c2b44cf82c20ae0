"""What a training program reports while it runs: rounds, evaluations, time spent waiting.

The engine calls an `Observer`; what becomes of the reports (file, progress bar, result) is decided
by whoever made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from celu.config.job import Tuning
from celu.engine.local import Workset, view
from celu.engine.plan import Stage, Timings
from celu.engine.spans import MOST, MOST_ROUNDS, Spans
from celu.events import (
    SIMILARITY_QUANTILES,
    Callback,
    CheckpointTaken,
    Evaluated,
    RoundDone,
    TuningChosen,
)
from celu.transport.message import TrafficBothWays

_LARGEST_TABLE = 64  # entries that a report lists


class Record(BaseModel):
    """What a run has reported so far, so that one that goes on reports as if never interrupted."""

    model_config = ConfigDict(extra="forbid", strict=True)
    seconds: float
    waited_s: float
    local_s: float
    evaluating_s: float
    transfer_s: float
    carried: dict[str, int]
    measured_from: list[float]
    losses: list[float]
    evaluations: list[dict[str, int | float]]


class Observer:
    """Turns the engine's calls into events: `emit(event)`.

    A round is reported every `report_every` rounds, so that reading values back from an
    accelerator does not stall every step. Its time is that of the clock of `spans`.
    """

    def __init__(
        self,
        emit: Callback,
        traffic: list[TrafficBothWays],
        num_rounds: int,
        report_every: int,
        spans: Spans,
    ) -> None:
        self._spans = spans
        self._clock = spans.clock
        self._began = spans.clock()
        self._round_ends: deque[float] = deque(maxlen=MOST_ROUNDS + 1)
        self._emit = emit
        self._traffic = traffic
        self._num_rounds = num_rounds
        self._report_every = report_every
        self._losses: list[Tensor] = []
        self._waited_s = 0.0
        self._local_s = 0.0
        self._evaluating_s = 0.0
        self._begin: tuple[float, ...] = ()
        self._carried: dict[str, int] = {}  # before this run went on
        self._transfer_s = 0.0
        self.evaluations: list[dict[str, float]] = []

    def record(self, unanswered_bytes: int) -> Record:
        """All that was reported; what was sent but not answered is left out: it is sent again."""
        carried = self.bytes()
        carried["bytes_sent"] -= unanswered_bytes
        return Record(
            seconds=self._clock() - self._began,
            waited_s=self._waited_s,
            local_s=self._local_s,
            evaluating_s=self._evaluating_s,
            transfer_s=self._transferred_s(),
            carried=carried,
            measured_from=list(self._begin),
            losses=torch.stack(self._losses).tolist() if self._losses else [],
            evaluations=list(self.evaluations),
        )

    def go_on(self, record: Record) -> None:
        """Report from here on as if never interrupted."""
        self._began = self._clock() - record.seconds
        self._waited_s = record.waited_s
        self._local_s = record.local_s
        self._evaluating_s = record.evaluating_s
        self._transfer_s = record.transfer_s
        self._carried = dict(record.carried)
        self._begin = tuple(record.measured_from)
        self._losses = [torch.tensor(loss) for loss in record.losses]
        self.evaluations = [dict(evaluation) for evaluation in record.evaluations]

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent in here is time that this party waited for another."""
        with self._spans.doing("wait") as spent:
            yield
        self._waited_s += spent.seconds

    @contextmanager
    def evaluating(self, *, counted: bool) -> Iterator[None]:
        """Time spent in here is that of an evaluation, `counted` if the contract asks for it."""
        with self._spans.doing("evaluate") as spent:
            yield
        if counted:
            self._evaluating_s += spent.seconds

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Time spent in here is that of an exchange: forward, backward, update."""
        with self._spans.doing("compute"):
            yield

    @contextmanager
    def local_steps(self) -> Iterator[None]:
        """Time spent in here is that of local steps."""
        with self._spans.doing("local") as spent:
            yield
        self._local_s += spent.seconds

    def measures_from_here(self, workset: Workset) -> None:
        """The rounds of a segment by which time is measured come now."""
        self._begin = self._totals(workset)

    def times(self, rounds: int, workset: Workset) -> Timings:
        """How the time went since then, in so many rounds."""
        spent = [now - then for now, then in zip(self._totals(workset), self._begin, strict=True)]
        seconds, waited_s, local_s, local_steps, transfer_s, transfer_bytes = spent
        return Timings(
            rounds, seconds, waited_s, local_s, int(local_steps), transfer_s, int(transfer_bytes)
        )

    def _totals(self, workset: Workset) -> tuple[float, ...]:
        return (
            self._clock() - self._began,
            self._waited_s,
            self._local_s,
            workset.local_steps,
            self._transferred_s(),
            self.bytes()["bytes_received"],
        )

    def _transferred_s(self) -> float:
        return self._transfer_s + sum(t.received.training_transfer_s for t in self._traffic)

    def chosen(self, step: Stage) -> None:
        """The guest chose how to go on."""
        tuning = step.segment.tuning.model_dump(include=set(Tuning.model_fields))
        fields: dict[str, Any] = {"round": step.segment.start, "until": step.segment.stop, **tuning}
        again: dict[str, Any] = {"back_to": step.restore} if step.restore else {}
        self._emit(TuningChosen(**fields, **again, seconds=self._seconds(), reason=step.reason))

    def round_done(self, round_: int, workset: Workset, loss: Tensor | None) -> None:
        """A round's exchanged update is made; `loss` is the guest's."""
        if loss is not None:
            self._losses.append(loss)
        self._round_ends.append(self._spans.last_turn)
        if (round_ + 1) % self._report_every and round_ + 1 != self._num_rounds:
            return
        fields: dict[str, Any] = {
            "round": round_ + 1,
            "seconds": self._seconds(),
            "local_steps": workset.local_steps,
            "bubbles": workset.bubbles,
            "waited_s": round(self._waited_s, 4),
            **self.bytes(),
        }
        if self._losses:
            fields["loss"] = float(torch.stack(self._losses).mean())
            self._losses.clear()
        if workset.similarity_B is not None:
            fields["similarity_quantiles"] = [round(q, 4) for q in quantiles(workset.similarity_B)]
        if workset.ages:
            fields["staleness"] = round(sum(workset.ages) / len(workset.ages), 4)
            workset.ages.clear()
        if workset.table.R > 1 and workset.table.W <= _LARGEST_TABLE:
            fields["table"] = view(workset.table)
        fields["spans"] = self._latest_spans()
        self._emit(RoundDone(**fields))

    def _latest_spans(self) -> list[tuple[str, float, float]]:
        """Where the time went since the last report, in its latest rounds, by what began first."""
        spans = self._spans.take()
        for traffic in self._traffic:
            spans += [("send", *span) for span in traffic.sent.drain_spans()]
            spans += [("receive", *span) for span in traffic.received.drain_spans()]
        since = self._round_ends[0] if len(self._round_ends) > MOST_ROUNDS else self._began
        spans = sorted((s for s in spans if s[2] > since), key=lambda s: s[1])[-MOST:]
        began = self._began
        return [(what, round(a - began, 5), round(b - began, 5)) for what, a, b in spans]

    def kept(self, rounds: int) -> None:
        """A checkpoint was taken after so many rounds; it may still have to be written."""
        self._emit(CheckpointTaken(round=rounds, seconds=self._seconds()))

    def evaluated(self, round_: int, metrics: dict[str, float], target_reached: bool) -> None:
        """Held-out rows were scored after this round."""
        fields: dict[str, Any] = {
            "round": round_ + 1,
            "seconds": self._seconds(),
            "evaluating_s": round(self._evaluating_s, 4),
            **metrics,
            **self.bytes(),
        }
        self.evaluations.append(fields)
        self._emit(Evaluated(**fields, target_reached=target_reached))

    def _seconds(self) -> float:
        """Since training began, by this party's clock."""
        return round(self._clock() - self._began, 4)

    def bytes(self) -> dict[str, int]:
        """Bytes over all links so far, evaluation traffic apart."""
        sent = [t.sent for t in self._traffic]
        received = [t.received for t in self._traffic]
        carried = {
            "bytes_sent": sum(t.training_bytes for t in sent),
            "bytes_received": sum(t.training_bytes for t in received),
            "evaluation_bytes": sum(t.evaluation_bytes for t in (*sent, *received)),
            "control_bytes": sum(t.control_bytes for t in (*sent, *received)),
        }
        return {name: count + self._carried.get(name, 0) for name, count in carried.items()}


def quantiles(x_B: Tensor) -> list[float]:
    """Those at `SIMILARITY_QUANTILES`, between two numbers in proportion; torch's own are slow for a few."""
    ordered = x_B.float().sort().values.tolist()
    found = []
    for quantile in SIMILARITY_QUANTILES:
        resume_point, between = divmod(quantile * (len(ordered) - 1), 1)
        low, high = (
            ordered[int(resume_point)],
            ordered[min(int(resume_point) + 1, len(ordered) - 1)],
        )
        found.append(low + (high - low) * between)
    return found
