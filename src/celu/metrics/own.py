"""A user's own metric: a function of (scores, labels), and whether higher is better.

@celu.metric(higher_is_better=True)
def lift(scores, labels):
    best = np.argsort(-scores)[: len(scores) // 10]
    return labels[best].mean() / labels.mean()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from celu.errors import ConfigError, ModelError
from celu.metrics.names import HIGHER_IS_BETTER
from celu.traceback_lines import last_lines

Function = Callable[[Any, Any], Any]
MAX_NAME = 64


@dataclass(frozen=True)
class Metric:
    """A metric of the user's own. The function gets copies: NumPy arrays of float64.

    `scores` has shape [N]: the probability of class 1 (binary) or the value (regression); or
    [N, K]: the probabilities of K classes. `labels` has shape [N]. Weights of rows are not passed.
    The result is a number. NaN ends a run; `celu evaluate` shows it as undefined.
    """

    function: Function
    higher_is_better: bool
    name: str = ""

    def __post_init__(self) -> None:
        name = self.name or getattr(self.function, "__name__", "")
        if not name.isidentifier() or len(name) > MAX_NAME or name in HIGHER_IS_BETTER:
            raise ConfigError(
                f"metric: expected a name of letters, digits and _ that no built-in metric has, "
                f"got {name[:MAX_NAME]!r}; pass celu.Metric(..., name=...)"
            )
        object.__setattr__(self, "name", name)

    def __call__(self, scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
        """The metric's value; raises ModelError if the function fails or returns no number."""
        try:
            value = self.function(scores.astype(np.float64), labels.astype(np.float64))
            return float(value)
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"the metric {self.name!r} failed for scores {list(scores.shape)} and labels "
                f"{list(labels.shape)}, {type(error).__name__}: {error}; it must return a number"
                + "".join(f"\n  {line}" for line in last_lines(error))
            ) from error


MetricLike = str | Metric


def undefined_on_failure(own: Metric, warn: Callable[[str], None]) -> Metric:
    """The same metric, but NaN where the function fails; `warn` is called the first time.

    A value of NaN or Inf, which would end another run, is a warning, too.
    """
    failures: list[str] = []

    def function(scores: Any, labels: Any) -> float:
        try:
            value = own(scores, labels)
        except ModelError as error:
            value, why = math.nan, str(error)
        else:
            why = f"the metric {own.name!r} is NaN or Inf"
        if math.isfinite(value):
            return value
        if not failures:
            warn(f"{why}; it is recorded as undefined, since hosts see when a run ends")
        failures.append(own.name)
        return math.nan

    return Metric(function, own.higher_is_better, own.name)


def metric(*, higher_is_better: bool) -> Callable[[Function], Metric]:
    """Make a metric of a function of (scores, labels); it has the function's name."""
    return lambda function: Metric(function, higher_is_better)


def as_metrics(given: MetricLike | Iterable[MetricLike] | None) -> tuple[MetricLike, ...] | None:
    """Metrics by name or as they are, each once; raises ConfigError."""
    if given is None:
        return None
    metrics = (given,) if isinstance(given, str | Metric) else tuple(given)
    for one in metrics:
        if not isinstance(one, str | Metric):
            raise ConfigError(
                f"metrics: expected names or celu.Metric, got {_what(one)}; declare a function "
                "with @celu.metric(higher_is_better=...)"
            )
        if isinstance(one, str) and one not in HIGHER_IS_BETTER:
            known = ", ".join(HIGHER_IS_BETTER)
            raise ConfigError(f"metrics: expected one of {known}, or celu.Metric, got {one!r}")
    names = [name_of(one) for one in metrics]
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ConfigError(f"metrics: expected each name once, got {', '.join(repeated)} again")
    return metrics


def name_of(one: MetricLike) -> str:
    """The name under which a metric is reported."""
    return one if isinstance(one, str) else one.name


def _what(value: object) -> str:
    name = getattr(value, "__name__", None)
    return f"the function {name}" if callable(value) and name else type(value).__name__
