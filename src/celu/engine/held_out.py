"""The metrics of held-out rows that a run reports, and whether higher is better for each.

By default these are all metrics that fit the loss; the guest may choose others, its own included.
The contract's metric is always among them, if it fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from celu.config.job import Evaluation
from celu.errors import ConfigError
from celu.metrics.measure import compute
from celu.metrics.names import (
    HIGHER_IS_BETTER,
    LOSS,
    METRICS,
    UNDEFINED_FOR_SOME_LABELS,
    UNSCALED,
    Output,
)
from celu.metrics.own import Metric, MetricLike
from celu.models.fit_labels import distinct
from celu.models.losses import Loss, to_scores


@dataclass(frozen=True)
class HeldOutScores:
    """The scores of the first held-out rows, in their order, and their labels [N].

    `scores` are as `celu.predict` returns them: [N], or [N, K] probabilities of K classes.
    `weights` [N] say how much each row counts in metrics, if rows have weights.
    """

    output: Output
    scores: npt.NDArray[np.float64]
    labels: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def has_one_per_row(self) -> bool:
        """Whether a scores file can hold them: one value, or K probabilities, for each label."""
        ndim = 2 if self.output == "multiclass" else 1
        return self.labels.ndim == 1 and self.scores.ndim == ndim

    @classmethod
    def of(
        cls, loss: Loss, output: Tensor, labels: Tensor, weights_B: Tensor | None = None
    ) -> HeldOutScores:
        """The scores of a model's output."""
        scores = to_scores(output, loss.prediction)
        if scores.ndim == 1 and labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels.reshape(-1)
        weights = None if weights_B is None else weights_B.double().numpy()
        return cls(loss.prediction, scores.numpy(), labels.double().numpy(), weights)


class HeldOutMetrics:
    """The metrics of one run."""

    def __init__(self, loss: Loss, chosen: Sequence[MetricLike] | None, contract: str) -> None:
        self._loss = loss
        self._chosen = None if chosen is None else [m for m in chosen if isinstance(m, str)]
        self._own = [m for m in chosen or () if isinstance(m, Metric)]
        self._contract = contract
        self.higher_is_better = HIGHER_IS_BETTER | {m.name: m.higher_is_better for m in self._own}

    @property
    def own(self) -> list[str]:
        """The names of the user's own metrics."""
        return [metric.name for metric in self._own]

    @property
    def lower_is_better(self) -> list[str]:
        """The user's own metrics for which lower is better."""
        return [metric.name for metric in self._own if not metric.higher_is_better]

    def check(
        self, decides: str | None, labels: Tensor | None = None, columns: int | None = None
    ) -> None:
        """Raise ConfigError for metrics that cannot fit the loss, before anything is trained.

        `decides` says what the contract's metric decides (see `what_metric_decides`); then it must
        be one that evaluations compute. `labels` are those of the rows that are evaluated, as codes
        of classes, and `columns` are the outputs for each of them, as far as they are known: they
        say what fits a loss that does not declare its output.
        """
        declared = self._loss.output
        fitting: Sequence[str] = [n for names in UNSCALED.values() for n in names]
        if declared:
            fitting = list(METRICS[declared])
        elif labels is not None:
            fitting = _fitting(labels, columns)
        self._check_chosen(fitting)
        own = self.own
        known = ", ".join(dict.fromkeys([LOSS, *fitting, *own]))
        if self._contract not in self.higher_is_better:
            raise ConfigError(
                f"evaluation.metric: expected one of {known}, got {self._contract}; a metric of "
                "the guest's own must be among its metrics ([model] metrics)"
            )
        if decides is not None and self._contract not in (LOSS, *fitting, *own):
            others = "" if declared else ", or declare celu.Loss(..., output=...) for others"
            raise ConfigError(
                f"evaluation.metric: expected a metric that fits the guest's loss ({known}), got "
                f"{self._contract}, which evaluations do not compute although it decides {decides};"
                f" choose one of these{others}"
            )

    def compute(self, held_out: HeldOutScores) -> dict[str, float]:
        """The metrics by name, the contract's first.

        Raises ConfigError if the guest chose one that does not fit, ModelError if one of its own
        fails.
        """
        output, scores, labels = held_out.output, held_out.scores, held_out.labels
        weights = held_out.weights
        if output != "multiclass" and scores.size == labels.size:
            if weights is not None and len(labels):
                weights = np.repeat(weights, labels.size // len(labels))
            scores, labels = scores.reshape(-1), labels.reshape(-1)  # of several outputs, all alike
        if self._loss.output is not None:
            fitting: Sequence[str] = list(METRICS[output])
        else:
            output, fitting = _infer(scores, labels)
        self._check_chosen(fitting)
        names = [n for n in (fitting if self._chosen is None else self._chosen) if n != LOSS]
        if self._contract in fitting and self._contract not in names:
            names.append(self._contract)
        found = compute(output, scores, labels, names, self._own, weights)
        if self._contract in found:
            found = {self._contract: found[self._contract], **found}
        return found

    def undefined(self, metrics: Mapping[str, float], held_out: HeldOutScores) -> list[str]:
        """The metrics that are NaN because of the labels, however good the model is.

        The contract's is none of them: a run needs its value.
        """
        if np.isnan(held_out.scores).any():
            return []
        candidates = UNDEFINED_FOR_SOME_LABELS - {self._contract}
        return [name for name, value in metrics.items() if name in candidates and isnan(value)]

    def _check_chosen(self, fitting: Sequence[str] | dict[str, bool]) -> None:
        wrong = [name for name in self._chosen or () if name not in (LOSS, *fitting)]
        if wrong:
            undeclared = self._loss.output is None
            raise ConfigError(
                f"metrics: expected metrics that fit the loss ({', '.join(fitting) or 'none'}) or "
                f"your own, got {', '.join(wrong)}"
                + ("; declare celu.Loss(..., output=...) for others" if undeclared else "")
            )


def what_metric_decides(settings: Evaluation, *, validates: bool) -> str | None:
    """What depends on the contract's metric; None if nothing does.

    Where nobody has chosen a metric, the loss takes its place, except for a target.
    """
    if settings.target is not None:
        return "whether the target is reached"
    if "metric" not in settings.model_fields_set:
        return None
    if settings.patience is not None:
        return "when training ends"
    return "which weights are the best" if validates else None


def columns_of(output: Tensor) -> int | None:
    """The number of outputs of each row; None without rows, as a rank may be."""
    return output.numel() // len(output) if len(output) else None


def _fitting(labels: Tensor, columns: int | None) -> list[str]:
    """What fits labels whose loss does not declare its output; see `_infer`."""
    values = set(distinct(labels, 2))
    one = UNSCALED["binary" if values <= {0, 1} or values == {-1, 1} else "regression"]
    width = columns_of(labels) or 1
    if columns == width or width > 1:
        return list(one if columns in (None, width) else ())
    least, most = labels.min(), labels.max()
    are_codes = bool((labels == labels.floor()).all()) and int(least) >= 0
    is_class = are_codes and (columns is None or int(most) < columns)
    many = UNSCALED["multiclass"] if is_class else ()
    return [*one, *many] if columns is None else list(many)


def _infer(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> tuple[Output, Sequence[str]]:
    """What labels and shape say about an output that its loss does not declare."""
    if labels.ndim != 1 or len(scores) != len(labels):
        return "regression", ()
    if scores.ndim == 1:
        values = set(np.unique(labels).tolist())
        kind: Output = "binary" if values <= {0, 1} or values == {-1, 1} else "regression"
        return kind, UNSCALED[kind]
    is_class = (labels == np.floor(labels)) & (labels >= 0) & (labels < scores.shape[1])
    return "multiclass", UNSCALED["multiclass"] if scores.ndim == 2 and is_class.all() else ()
