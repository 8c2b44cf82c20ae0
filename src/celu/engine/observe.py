"""What a training program reports while it runs: rounds, evaluations, time spent waiting.

The engine calls an `Observer`; what becomes of the reports (file, progress bar, result) is decided
by whoever made it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from celu.engine.local import Workset
from celu.transport.message import TrafficBothWays

Emit = Callable[[str, dict[str, Any]], None]
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


class Observer:
    """Turns the engine's calls into events: `emit(event, fields)`.

    A round is reported every `report_every` rounds, so that reading values back from an
    accelerator does not stall every step.
    """

    def __init__(
        self,
        emit: Emit,
        traffic: list[TrafficBothWays],
        num_rounds: int,
        report_every: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._emit = emit
        self._traffic = traffic
        self._num_rounds = num_rounds
        self._report_every = report_every
        self._losses: list[Tensor] = []
        self._waited_s = 0.0
        self.evaluations: list[dict[str, float]] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent in here is time that this party waited for another."""
        started = self._clock()
        yield
        self._waited_s += self._clock() - started

    def round_done(self, round_: int, workset: Workset, loss: Tensor | None) -> None:
        """A round's exchanged update is made; `loss` is the guest's."""
        if loss is not None:
            self._losses.append(loss)
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
            at = torch.tensor(_QUANTILES, device=workset.similarity_B.device)
            quantiles = torch.quantile(workset.similarity_B.float(), at).tolist()
            fields["similarity_quantiles"] = [round(q, 4) for q in quantiles]
        self._emit("round", fields)

    def evaluated(self, round_: int, metrics: dict[str, float], target_reached: bool) -> None:
        """Held-out rows were scored after this round."""
        fields = {"round": round_ + 1, "seconds": self._seconds(), **metrics, **self.bytes()}
        self.evaluations.append(fields)
        self._emit("evaluation", {**fields, "target_reached": target_reached})

    def _seconds(self) -> float:
        """Since training began, by this party's clock."""
        return round(self._clock() - self._began, 4)

    def bytes(self) -> dict[str, int]:
        """Bytes over all links so far, evaluation traffic apart."""
        sent = [t.sent for t in self._traffic]
        received = [t.received for t in self._traffic]
        return {
            "bytes_sent": sum(t.training_bytes for t in sent),
            "bytes_received": sum(t.training_bytes for t in received),
            "evaluation_bytes": sum(t.evaluation_bytes for t in (*sent, *received)),
            "control_bytes": sum(t.control_bytes for t in (*sent, *received)),
        }
