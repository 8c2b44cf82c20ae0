"""Measures a training loop and emits its events: rounds, evaluations, tunings, checkpoints.

It does not decide what happens to an event (file, progress bar, tracker): the caller passes `emit`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from celu.config.job import Tuning
from celu.config.schema import HeldOut
from celu.engine.history import EvaluationHistory
from celu.engine.outcome import Timings
from celu.engine.plan import Stage
from celu.engine.round_report import RoundReport
from celu.engine.spans import MAX_SPAN_ROUNDS, MAX_SPANS, Recorded, Spans
from celu.events import (
    Callback,
    CheckpointTaken,
    Evaluated,
    Event,
    ModelTested,
    TuningChosen,
    Warned,
)
from celu.transport.message import TrafficBothWays
from celu.workset.workset import Workset

# Reports whose numbers a device still computes. Its own queue, of about a thousand kernels and
# graphs, is full long before: so training never waits for a report.
_MAX_PENDING = 1024
_MAX_ENDS = 512  # of rounds
_MIN_CYCLES = 3  # fewer are too noisy


class ProgressState(BaseModel):
    """Totals of a run so far, so that a resumed run reports as if it had not been interrupted.

    Its fields are a file format.
    """

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
    num_evaluations: int | None = None  # those not retained included; None: all are retained


class Observer:
    """Turns the engine's calls into events, for `emit(event)`.

    It reports every `report_every`-th round. The report of a party on a GPU is emitted once its
    numbers have been copied from there: training does not wait for it.
    It uses the clock of `spans`.
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
        self._started = spans.clock()
        self._round_ends: deque[float] = deque(maxlen=MAX_SPAN_ROUNDS + 1)
        self._emit_now = emit
        self._pending: deque[RoundReport] = deque()
        self._traffic = traffic
        self._num_rounds = num_rounds
        self._report_every = report_every
        self._losses: list[Tensor] = []
        self._waited_s = 0.0
        self._local_s = 0.0
        self._evaluating_s = 0.0
        self._diverged = False
        self._measured_from: tuple[float, ...] = ()  # totals when measuring started
        # When the latest rounds of this segment ended, and the time in evaluations until then.
        self._segment_ends: deque[tuple[float, float]] = deque(maxlen=_MAX_ENDS)
        self._earlier_bytes: dict[str, int] = {}  # before the run was resumed
        self._transfer_s = 0.0
        self._evaluations = EvaluationHistory()
        self._left_out: set[str] = set()  # metrics, as reported

    def progress(self, repeated_bytes: Mapping[str, int]) -> ProgressState:
        """The totals for a checkpoint, without the bytes that a resumed run carries again."""
        carried = {name: n - repeated_bytes.get(name, 0) for name, n in self.bytes().items()}
        return ProgressState(
            seconds=self._clock() - self._started,
            waited_s=self._waited_s,
            local_s=self._local_s,
            evaluating_s=self._evaluating_s,
            transfer_s=self._total_transfer_s(),
            carried=carried,
            measured_from=list(self._measured_from),
            losses=torch.stack(self._losses).tolist() if self._losses else [],
            evaluations=self.evaluations,
            num_evaluations=self._evaluations.count,
        )

    def load_progress(self, progress: ProgressState) -> None:
        """Restore the totals from a checkpoint."""
        self._started = self._clock() - progress.seconds
        self._waited_s = progress.waited_s
        self._local_s = progress.local_s
        self._evaluating_s = progress.evaluating_s
        self._transfer_s = progress.transfer_s
        self._earlier_bytes = dict(progress.carried)
        self._measured_from = tuple(progress.measured_from)
        self._losses = [torch.tensor(loss) for loss in progress.losses]
        self._evaluations = EvaluationHistory(progress.evaluations, progress.num_evaluations)

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """The evaluations so far; of very many, evenly spaced ones and the last."""
        return self._evaluations.to_list()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time this block as waiting for a peer."""
        with self._spans.record("wait") as elapsed:
            yield
        self._waited_s += elapsed.seconds

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time this block as an evaluation, which is neither reported nor measured as training."""
        waited_s = self._waited_s
        with self._spans.record("evaluate") as elapsed:
            yield
        self._evaluating_s += elapsed.seconds
        if self._measured_from:
            seconds, waited, *others = self._measured_from
            waited_s = self._waited_s - waited_s
            self._measured_from = (seconds + elapsed.seconds, waited + waited_s, *others)

    def computing(self) -> Recorded:
        """Time this block as an exchange: forward, backward, update."""
        return self._spans.record("compute")

    @contextmanager
    def local_steps(self) -> Iterator[None]:
        """Time this block as local steps."""
        with self._spans.record("local") as elapsed:
            yield
        self._local_s += elapsed.seconds

    def diverged(self) -> None:
        """NaN or Inf made this party continue from its savepoint."""
        self._diverged = True

    def pop_diverged(self) -> int:
        """1 if the party has diverged since the last call, else 0."""
        diverged, self._diverged = self._diverged, False
        return int(diverged)

    def start_segment(self) -> None:
        """Start a segment."""
        self._segment_ends.clear()

    def start_measuring(self, workset: Workset) -> None:
        """Start the measured rounds of a segment."""
        workset.pop_reuse_weight()
        self._measured_from = self._totals(workset)

    def timings(self, rounds: int, workset: Workset) -> Timings:
        """The timings of the `rounds` rounds since `start_measuring`."""
        totals = zip(self._totals(workset), self._measured_from, strict=True)
        deltas = [now - before for now, before in totals]
        seconds, waited_s, local_s, local_steps, transfer_s, transfer_bytes = deltas
        return Timings(
            rounds,
            seconds,
            waited_s,
            local_s,
            int(local_steps),
            transfer_s,
            int(transfer_bytes),
            workset.pop_reuse_weight(),
        )

    def cycles_s(self, depth: int, rounds: int) -> tuple[float, float]:
        """How long `depth` rounds took: the median of the last `rounds`, the least of the segment.

        Both are 0 if there are too few. Unlike the mean, they hardly change if the link is down for
        a while. Rounds with an evaluation between them do not count: the parties wait for it.
        """
        ends = list(self._segment_ends)
        pairs = list(zip(ends, ends[depth:], strict=False))
        cycles = [b - a if evaluating == after else None for (a, evaluating), (b, after) in pairs]
        measured = [c for c in cycles[-max(0, rounds - depth) :] if c is not None]
        if len(measured) < _MIN_CYCLES or rounds <= depth:
            return 0.0, 0.0
        return median(measured), min(c for c in cycles if c is not None)

    def _totals(self, workset: Workset) -> tuple[float, ...]:
        return (
            self._clock() - self._started,
            self._waited_s,
            self._local_s,
            workset.local_steps,
            self._total_transfer_s(),
            self.bytes()["bytes_received"],
        )

    def _total_transfer_s(self) -> float:
        return self._transfer_s + sum(t.received.training_transfer_s for t in self._traffic)

    def tuning_chosen(self, stage: Stage) -> None:
        """Emit the tuning that the guest chose for a stage; a rollback drops evaluations."""
        segment = stage.segment
        if stage.restore:
            self._evaluations.roll_back(segment.start)
        tuning = segment.tuning.model_dump(include=set(Tuning.model_fields))
        fields: dict[str, Any] = {"round": segment.start, "until": segment.stop, **tuning}
        rollback: dict[str, Any] = {"back_to": stage.restore} if stage.restore else {}
        self._emit(TuningChosen(**fields, **rollback, seconds=self._seconds(), reason=stage.reason))

    def round_done(
        self, round_: int, workset: Workset, lr: float, loss: Tensor | None = None
    ) -> None:
        """Count a finished round, and report it if a report is due; `loss` is the guest's."""
        if loss is not None:
            self._losses.append(loss)
        self._round_ends.append(self._spans.last_switch)
        self._segment_ends.append((self._spans.last_switch, self._evaluating_s))
        if (round_ + 1) % self._report_every and round_ + 1 != self._num_rounds:
            return
        fields: dict[str, Any] = {
            "round": round_ + 1,
            "seconds": self._seconds(),
            "local_steps": workset.local_steps,
            "bubbles": workset.bubbles,
            "lr": lr,
            "waited_s": round(self._waited_s, 4),
            **self.bytes(),
        }
        if workset.ages:
            fields["staleness"] = round(sum(workset.ages) / len(workset.ages), 4)
            workset.ages.clear()
        fields["spans"] = self._latest_spans()
        self._pending.append(RoundReport(fields, self._losses, workset))
        self._losses = []
        if round_ + 1 == self._num_rounds:
            self._emit_pending()
        while self._pending and (len(self._pending) > _MAX_PENDING or self._pending[0].is_ready):
            self._emit_now(self._pending.popleft().event())

    def _emit(self, event: Event) -> None:
        """Emit an event after the reports of the rounds before it."""
        self._emit_pending()
        self._emit_now(event)

    def _emit_pending(self) -> None:
        if self._pending:
            self._pending[-1].wait()  # once for all
        while self._pending:
            self._emit_now(self._pending.popleft().event())

    def _latest_spans(self) -> list[tuple[str, float, float]]:
        """The spans of the latest rounds since the last report, sorted by start."""
        spans = self._spans.drain()
        for traffic in self._traffic:
            spans += [("send", *span) for span in traffic.sent.drain_spans()]
            spans += [("receive", *span) for span in traffic.received.drain_spans()]
        since = self._round_ends[0] if len(self._round_ends) > MAX_SPAN_ROUNDS else self._started
        spans = sorted((s for s in spans if s[2] > since), key=lambda s: s[1])[-MAX_SPANS:]
        zero = self._started
        return [(what, round(a - zero, 5), round(b - zero, 5)) for what, a, b in spans]

    def checkpoint_taken(self, rounds: int) -> None:
        """Emit that a checkpoint was taken after `rounds` rounds."""
        self._emit(CheckpointTaken(round=rounds, seconds=self._seconds()))

    def evaluated(
        self,
        round_: int,
        metrics: dict[str, float],
        target_reached: bool,
        rows: HeldOut = "test",
        is_best: bool = False,
        decides: str | None = None,
    ) -> None:
        """Emit the metrics of held-out rows after this round."""
        fields = self._scored(round_ + 1, metrics)
        self._evaluations.append(fields)
        validation: dict[str, Any] = {}
        if rows == "validation":
            validation = {"rows": rows, "best": is_best}
            validation |= {} if decides is None else {"decides": decides}
        self._emit(Evaluated(**fields, target_reached=target_reached, **validation))

    def tested(self, round_: int, metrics: dict[str, float]) -> None:
        """Emit the metrics of the test rows, with the weights after `round_` rounds."""
        self._emit(ModelTested(**self._scored(round_, metrics)))

    def left_out(self, metrics: Sequence[str]) -> None:
        """Emit, once, that these metrics are undefined for the labels of held-out rows."""
        new = [name for name in metrics if name not in self._left_out]
        self._left_out.update(new)
        if new:
            message = (
                f"the held-out labels do not define {', '.join(new)}, so evaluations leave it out: "
                "all labels that count are the same; hold out more rows"
            )
            self._emit(Warned(message=message))

    def _scored(self, round_: int, metrics: dict[str, float]) -> dict[str, Any]:
        return {
            "round": round_,
            "seconds": self._seconds(),
            "evaluating_s": round(self._evaluating_s, 4),
            **metrics,
            **self.bytes(),
        }

    def _seconds(self) -> float:
        """Training time so far, all attempts counted."""
        return round(self._clock() - self._started, 4)

    def bytes(self) -> dict[str, int]:
        """Bytes over all links so far, by kind of traffic."""
        sent = [t.sent for t in self._traffic]
        received = [t.received for t in self._traffic]
        carried = {
            "bytes_sent": sum(t.training_bytes for t in sent),
            "bytes_received": sum(t.training_bytes for t in received),
            "evaluation_bytes": sum(t.evaluation_bytes for t in (*sent, *received)),
            "control_bytes": sum(t.control_bytes for t in (*sent, *received)),
        }
        return {name: count + self._earlier_bytes.get(name, 0) for name, count in carried.items()}
