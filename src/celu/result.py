"""The result of a run, also for notebooks: a table and curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celu.audit.result import Audit
from celu.config.job import Choice
from celu.display.curves import plot_evaluations
from celu.display.table import html_table
from celu.engine.held_out import HeldOutScores
from celu.events import Evaluated
from celu.label_map import LabelMap
from celu.metrics.names import title_of
from celu.model_identity import ModelIdentity

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """The result of a run at one party. Only the guest has evaluations.

    Of more than 2000 `evaluations`, it has evenly spaced ones and the last; events have all.
    `label_map`, at the guest, says how predictions relate to labels: their classes, or the mean and
    deviation of a number. `choices` are the tunings that the guest chose with `method = "auto"`: a
    job with these choices repeats the run. `model` names the trained model, at all parties alike.
    `mean_z` has each host's mean Z, at the guest: a prediction uses it for a row that the host
    lacks. `scores` has the trained model's scores of the held-out rows, at the guest. `audit` has
    what the run leaked, if it was audited.

    With validation rows, `evaluations` are of these, the weights are those after `best_round`
    rounds, whose evaluation was the best, and `test` has the metrics of the test rows with them.

    With `privacy.label_epsilon`, `model` names the guest's part by the weights of its twin, which
    hosts may know; `own_weights`, at the guest, is the digest of its own.
    """

    rounds: int
    local_steps: int
    bubbles: int
    evaluations: list[dict[str, float]]
    traffic: dict[str, int]
    choices: list[Choice]
    model: ModelIdentity
    mean_z: dict[str, list[float]]
    label_map: LabelMap = field(default_factory=LabelMap)
    best_round: int | None = None
    test: dict[str, float] = field(default_factory=dict)
    scores: HeldOutScores | None = field(default=None, repr=False, compare=False)
    own_weights: str | None = None
    audit: Audit | None = field(default=None, repr=False, compare=False)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the test rows by name, or of the last evaluation; empty at a host."""
        if self.test:
            return self.test
        return _metrics_in(self.evaluations[-1] if self.evaluations else {})

    def plot(self, *metrics: str | Sequence[str], over: str = "round") -> Figure:
        """Curves of the evaluations, of all metrics or of those named: a matplotlib figure.

        The names may be in a list. `over` is "round", "seconds" or "bytes". Needs
        `pip install "celu[figures]"`. Raises ConfigError for an unknown metric, and at a host,
        which has no evaluations.
        """
        names: list[str] = []
        for one in metrics:
            names += [one] if isinstance(one, str) or not isinstance(one, Iterable) else one
        names = names or list(_metrics_in(self.evaluations[-1] if self.evaluations else {}))
        return plot_evaluations(self.evaluations, names, over, self.best_round)

    def _repr_html_(self) -> str:
        """The result as a table, for notebooks."""
        traffic = sum(self.traffic.values())
        best = {} if self.best_round is None else {"best round": f"{self.best_round:,}"}
        return html_table(
            "celu result",
            {
                "rounds": f"{self.rounds:,}",
                **best,
                "local steps": f"{self.local_steps:,}",
                **{title_of(name): f"{value:.4f}" for name, value in self.metrics.items()},
                "traffic": f"{traffic / 1e6:,.1f} MB",
                "model": self.model.name,
            },
        )


def _metrics_in(evaluation: dict[str, float]) -> dict[str, float]:
    """The metrics of an evaluation by name."""
    return {name: value for name, value in evaluation.items() if name not in Evaluated.model_fields}
