"""What replaces missing values: a declared value, or the mean or median of the training rows."""

from __future__ import annotations

from celu.config.columns import Statistic
from celu.prepare.encoders.statistics import Floats, QuantileSketch, RunningMoments


class Filling:
    """Fits the replacement, unless it is declared or was `fitted` before."""

    def __init__(self, missing: float | Statistic | None, fitted: float | None = None) -> None:
        self._statistic: RunningMoments | QuantileSketch | None = None
        self._value = fitted
        if isinstance(missing, float):
            self._value = missing
        elif fitted is None and missing is not None:
            self._statistic = RunningMoments() if missing == "mean" else QuantileSketch()

    @property
    def is_known(self) -> bool:
        """Whether it does not depend on the rows."""
        return self._statistic is None

    def add(self, values: Floats) -> None:
        """Add values of training rows, which are not missing."""
        if self._statistic is not None:
            self._statistic.add(values)

    @property
    def value(self) -> float:
        """The replacement; 0 if all values are missing, and where none is declared."""
        if isinstance(self._statistic, RunningMoments):
            return self._statistic.result()[0]
        if isinstance(self._statistic, QuantileSketch):
            return (self._statistic.quantiles([0.5]) or [0.0])[0]
        return self._value or 0.0
