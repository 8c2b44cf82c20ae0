"""Evaluations in training: scores, the contract's target and the objective of `auto`.

It does not run the models: `GuestTrainer.score` computes the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from celu.config.job import Evaluation
from celu.config.schema import HeldOut
from celu.engine.best import BestModel
from celu.engine.held_out import (
    HeldOutMetrics,
    HeldOutScores,
    columns_of,
    what_metric_decides,
)
from celu.engine.observer import Observer
from celu.engine.schedule import Schedule
from celu.engine.scores import Scores
from celu.errors import CheckpointError, NonFiniteError
from celu.metrics.names import LOSS
from celu.metrics.own import MetricLike
from celu.models.losses import Loss
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect


class Metrics(NamedTuple):
    """The metrics of an evaluation: those to report, and those that decide what hosts see.

    They are the same, except where the guest has a twin.
    """

    reported: dict[str, float]
    deciding: dict[str, float]


class Evaluator:
    """Computes metrics from scores, and compares them with the contract's target.

    `metrics` are those that the guest chose; None: all that fit its loss. `held_out` has the scores
    of the test rows by their latest evaluation.
    """

    def __init__(
        self, loss: Loss, settings: Evaluation, metrics: Sequence[MetricLike] | None = None
    ) -> None:
        self._loss = loss
        self._settings = settings
        self._metric = settings.metric
        self._target = settings.target
        self._patience = settings.patience
        self._metrics = HeldOutMetrics(loss, metrics, settings.metric)
        self.held_out: HeldOutScores | None = None
        self.undefined: list[str] = []  # metrics that the latest labels do not define

    @property
    def lower_is_better(self) -> list[str]:
        """The user's own metrics for which lower is better."""
        return self._metrics.lower_is_better

    def check_metric(self, labels: Tensor, output: Tensor, *, validates: bool) -> None:
        """Raise ConfigError if the contract's metric decides, but does not fit this output."""
        decides = what_metric_decides(self._settings, validates=validates)
        self._metrics.check(decides, labels, columns_of(output))

    def metrics(self, rows: HeldOut, scores: Sequence[Scores]) -> dict[str, float]:
        """The metrics over all scored rows, by name: the loss, and those of `HeldOutMetrics`."""
        parts = zip(*((s.output, s.losses_B, s.labels) for s in scores), strict=True)
        output, losses_B, labels = (torch.cat(part) for part in parts)
        weights = [s.weights_B for s in scores if s.weights_B is not None]
        weights_B = torch.cat(weights).double() if weights else None
        found = HeldOutScores.of(self._loss, output, labels, weights_B)
        if rows == "test":
            self.held_out = found
        metrics = self._metrics.compute(found)
        self.undefined = self._metrics.undefined(metrics, found)
        defined = {name: value for name, value in metrics.items() if name not in self.undefined}
        return {LOSS: _mean(losses_B.double(), weights_B), **defined}

    def load_held_out(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Restore the scores of the test rows from a checkpoint; raises CheckpointError.

        Labels and weights are those of all test rows.
        """
        if scores.ndim not in (1, 2) or scores.dtype != torch.float64 or len(scores) > len(labels):
            raise CheckpointError(
                f"the scores in the checkpoint: expected float64 for at most {len(labels)} rows, "
                f"got {scores.dtype} of {list(scores.shape)}"
            )
        own = labels[: len(scores)].reshape(-1).double().numpy()
        counts = None if weights is None else weights[: len(scores)].double().numpy()
        self.held_out = HeldOutScores(self._loss.prediction, scores.numpy(), own, counts)

    def check(self, metrics: Mapping[str, float], rounds: int) -> None:
        """Raise NonFiniteError if the loss or a metric after so many rounds is NaN or Inf.

        Metrics that these labels do not define are not among them. Rows that do not define the
        contract's metric are refused before the run starts.
        """
        bad = [name for name, value in metrics.items() if not math.isfinite(value)]
        if not bad:
            return
        # NaN scores make every metric NaN: one of the user's own is to blame only if it is alone.
        name = next((name for name in bad if name not in self._metrics.own), None)
        if name is not None:
            raise NonFiniteError(
                f"the {name} of the evaluation after round {rounds} is NaN or Inf; lower the "
                "learning rate or check the inputs; the run resumes from its last checkpoint"
            )
        raise NonFiniteError(
            f"the metric {bad[0]!r}, a function of your own, returned NaN or Inf in the evaluation "
            f"after round {rounds}: it must return a finite number for any scores; correct it, and "
            "start again: the run resumes from its last checkpoint"
        )

    def reached_target(self, metrics: Mapping[str, float]) -> bool:
        """Whether these metrics meet the contract's target."""
        if self._target is None or self._metric not in metrics:
            return False
        value = metrics[self._metric]
        is_higher = self._metrics.higher_is_better[self._metric]
        return value >= self._target if is_higher else value <= self._target

    def stand_in(self, metrics: Mapping[str, float]) -> str | None:
        """What decides in place of the contract's metric, if these metrics do not have it."""
        return None if self._metric in metrics else LOSS

    def objective(self, metrics: Mapping[str, float]) -> float:
        """The contract's metric (the loss if it is missing), negated where lower is better."""
        metric = self._metric if self._metric in metrics else LOSS
        return metrics[metric] if self._metrics.higher_is_better[metric] else -metrics[metric]

    def is_best(self, metrics: Mapping[str, float], best: BestModel | None) -> bool:
        """Whether these metrics are better than the best so far; an AUC of NaN never is."""
        score = self.objective(metrics)
        return math.isfinite(score) and (best is None or best.score is None or score > best.score)

    def is_out_of_patience(self, best: BestModel | None) -> bool:
        """Whether too many evaluations since the best one have been worse."""
        return best is not None and self._patience is not None and best.num_worse >= self._patience


def _mean(values_B: Tensor, weights_B: Tensor | None) -> float:
    if weights_B is None:
        return float(values_B.mean())
    return float((weights_B * values_B).sum() / weights_B.sum())


class _Trainer(Protocol):
    def score(self, rows: HeldOut, start: int, stop: int, activations: list[Message]) -> Scores: ...
    def metrics(self, rows: HeldOut, scores: Sequence[Scores]) -> Metrics: ...


async def evaluate(
    trainer: _Trainer,
    links: Mapping[str, Link],
    schedule: Schedule,
    rows: HeldOut,
    round_: int,
    observer: Observer,
) -> Metrics:
    """Score held-out rows, part by part, and return the metrics over all of them.

    What is waited for up to the first part is not counted as evaluating: without an evaluation, the
    guest would wait as long for the next Z, which now arrives right after the last part.
    """

    async def receive(part: int) -> list[Message]:
        with observer.waiting():
            return [
                expect(await link.receive(), Kind.TEST_ACTIVATION, round_, part)
                for link in links.values()
            ]

    scores, first = [], await receive(0)
    with observer.evaluating():
        for part, start, stop in schedule.held_out_parts(rows):
            activations = await receive(part) if part else first
            scores.append(trainer.score(rows, start, stop, activations))
        return trainer.metrics(rows, scores)
