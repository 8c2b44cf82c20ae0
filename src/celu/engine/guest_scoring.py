"""Scores of held-out rows at the guest, and their metrics: at the first rank, of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from celu.audit.recorder import Recorder
from celu.config.job import Evaluation
from celu.config.schema import HeldOut
from celu.data.dataset import Batch
from celu.engine.evaluation import Evaluator, Metrics
from celu.engine.guest_loss import GuestLoss
from celu.engine.guest_model import GuestModel
from celu.engine.scores import Scores
from celu.engine.twin import Twin
from celu.party import Guest
from celu.ranks.slices import Slices

HELD_OUT = "held_out.scores"  # in the last checkpoint of a run


class GuestScoring:
    """Scores held-out rows with the guest's model, and with its twin if there is one."""

    def __init__(
        self,
        guest: Guest,
        model: GuestModel,
        losses: GuestLoss,
        evaluator: Evaluator,
        twin: Twin | None,
        ranks: Slices,
    ) -> None:
        self._test = guest.test
        self._validates = guest.validation is not None and guest.validation.num_rows > 0
        self._evaluated = guest.held_out("validation" if self._validates else "test")
        self._evaluator = evaluator
        self._model = model
        self._losses = losses
        self._twin = twin
        self._ranks = ranks

    def score(
        self,
        rows: HeldOut,
        start: int,
        batch: Batch,
        z: Mapping[str, Tensor],
        recorder: Recorder | None,
    ) -> Scores:
        """Score the held-out rows of a batch, which begins at `start`; `z` are by host."""
        assert batch.labels is not None  # checked before the run starts
        label_map, stop = self._losses.label_map, start + len(batch.labels)
        output, losses_B = self._score(batch, [*z.values()], stop - start)
        output, labels = label_map.in_own_units(output), label_map.codes(batch.labels)
        if recorder is not None and labels.dim() == 1:
            values = {f"z.{host}": z_BD for host, z_BD in z.items()}
            recorder.add_held_out(start, {**values, "labels": labels})
        weights_B = None if batch.weights is None else batch.weights.cpu()
        twin = None
        if self._twin is not None:
            twin = self._twin.score(rows, start, stop, batch, [*z.values()])
        return Scores(output.cpu(), losses_B.cpu(), labels.cpu(), weights_B, twin)

    def _score(self, batch: Batch, z: Sequence[Tensor], num_rows: int) -> tuple[Tensor, Tensor]:
        """Output and losses of held-out rows: at the first rank all of them."""
        own, found = self._ranks.own_part(batch, num_rows), []
        with self._model.evaluating(), torch.no_grad():
            for rows in self._ranks.each(num_rows):
                part = self._ranks.part_of(own, rows)
                some_z = [self._ranks.part(z_BD, rows) for z_BD in z]
                output = self._model.forward(part.inputs, some_z)
                found.append([output, self._losses.of_rows(part, output)])
            self._model.stand_in(batch, z, num_rows)
        joined = self._ranks.join(found) or [torch.empty(0)] * 2
        output, losses_B = (self._ranks.gather(tensor, num_rows) for tensor in joined)
        return output, losses_B

    def check_metric(self, settings: Evaluation, output: Tensor) -> None:
        """Raise ConfigError if this output of the model, in training, lacks a metric that decides.

        What fits a loss that does not declare its output is known only now.
        """
        if self._evaluated.num_rows and self._evaluated.labels is not None:
            labels = self._losses.label_map.codes(self._evaluated.labels[: settings.rows])
            combined = self._losses.combine(output.detach())
            self._evaluator.check_metric(labels, combined, validates=self._validates)

    def metrics(self, rows: HeldOut, scores: Sequence[Scores]) -> Metrics:
        """The metrics over all scored rows, which the first rank has; all ranks get them."""

        def compute() -> list[dict[str, float]]:
            reported = self._evaluator.metrics(rows, scores)
            if self._twin is None:
                return [reported, reported]
            return [reported, self._twin.metrics([s.twin for s in scores if s.twin is not None])]

        return Metrics(*self._ranks.share(compute))

    def final_tensors(self) -> dict[str, Tensor]:
        """The scores of the test rows, for the last checkpoint of a run, if they are known."""
        held_out = self._evaluator.held_out
        if held_out is None or not held_out.has_one_per_row:
            return {}
        return {HELD_OUT: torch.from_numpy(held_out.scores)}

    def load_final(self, scores: Tensor | None) -> None:
        """Load the scores of a checkpoint, if it has some; the label map must be loaded before."""
        if scores is None:
            return
        assert self._test.labels is not None  # checked before the run starts
        labels, weights = self._losses.label_map.codes(self._test.labels), self._test.weights
        self._evaluator.load_held_out(
            scores.cpu(), labels.cpu(), None if weights is None else weights.cpu()
        )
