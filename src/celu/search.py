"""The search of `celu tune`: which values are tried, which trials are stopped early, which is best.

Trials are recorded in `study.db`, an Optuna study, so that an interrupted search resumes. It does
not train: the caller does, and reports each evaluation.
"""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celu.config.job import Job
from celu.config.space import Range, Space, Values
from celu.engine.held_out import HeldOutMetrics
from celu.errors import ConfigError, ModelError, NonFiniteError, TrialPruned
from celu.events import Evaluated, Event
from celu.metrics.names import LOSS, METRICS
from celu.party import Guest
from celu.result import Result

if TYPE_CHECKING:
    from optuna import Study
    from optuna import Trial as OptunaTrial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STUDY = "study.db"
_STARTUP = 5  # trials before one may be stopped early
_RANDOM = 10  # trials before values are chosen by the results of earlier ones


class Objective(NamedTuple):
    """The metric that decides, and whether higher is better."""

    metric: str
    higher_is_better: bool

    @classmethod
    def of(cls, job: Job, guest: Guest) -> Objective:
        """The contract's metric, or the loss where the model does not have the default one.

        Raises ConfigError for a metric that neither celu nor the guest has, or that does not fit.
        """
        metric, output = job.evaluation.metric, guest.loss.output
        known = HeldOutMetrics(guest.loss, guest.metrics, metric)
        is_given = "metric" in job.evaluation.model_fields_set
        known.check("which trial is the best" if is_given else None)
        others = [n for named in METRICS.values() for n in named]
        if output is not None and metric in others and metric not in METRICS[output]:
            metric = LOSS
        return cls(metric, known.higher_is_better[metric])


@dataclass(frozen=True)
class Trial:
    """One trial: its values by dotted name, and how it ended.

    `status` is "done", "pruned", or the reason why it has no score. `score` is that of the model
    that the run delivers: of its best evaluation with validation rows, otherwise of its last.
    """

    number: int
    values: dict[str, Any]
    score: float | None = None
    rounds: int = 0
    status: str = "done"


@dataclass
class Progress:
    """A callback of a running trial: reports its evaluations, and stops it if it is too bad."""

    metric: str
    _trial: OptunaTrial
    _prunes: bool
    scores: dict[int, float] = field(default_factory=dict, init=False)  # by round

    @property
    def rounds(self) -> int:
        """The round of the last evaluation."""
        return max(self.scores, default=0)

    @property
    def score(self) -> float | None:
        """The score of the last evaluation."""
        return self.scores.get(self.rounds)

    def __call__(self, event: Event) -> None:
        """Raises TrialPruned."""
        if not isinstance(event, Evaluated) or event.round <= self.rounds:
            return  # with `auto`, a run that rolled back repeats rounds
        score = event.metrics.get(self.metric, math.nan)
        if not math.isfinite(score):
            return
        self.scores[event.round] = score
        self._trial.report(score, event.round)
        if self._prunes and self._trial.should_prune():
            raise TrialPruned(f"pruned after {event.round} rounds")


class Search:
    """A search over a space, in a folder; `open` it to make trials.

    The values of a trial depend on (seed, earlier trials) only: a search that was interrupted and
    resumed tries the same values as one that was not. Raises ConfigError if Optuna is missing, if
    the folder has a search of something else, or if another process uses it.
    """

    def __init__(
        self,
        folder: Path,
        space: Space,
        job: Job,
        *,
        objective: Objective,
        rows: Mapping[str, Any],
        start: str | None = None,
        seed: int = 1,
        prunes: bool = True,
    ) -> None:
        """`rows` identifies the parties' data, and `start` the model that trials start from.

        A search is resumed with the same ones only.
        """
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                "celu tune: the package optuna is not installed; "
                'install it with: pip install "celu[tune]"'
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._folder = folder
        self._space = space
        self._job = job
        self._seed = seed
        self._prunes = prunes
        self.objective = objective
        self._identity = {
            "contract": job.contract(),
            "space": space.to_dict(),
            "metric": objective.metric,
            "rows": dict(rows),
            "seed": seed,
            "prune": prunes,
            "start": start,
        }
        self._study: Study  # once it is open
        self._distributions = {
            name: self._distribution(dimension) for name, dimension in space.dimensions.items()
        }

    @contextmanager
    def open(self) -> Iterator[list[Trial]]:
        """Open the study, alone, within this context; yields the trials that it has."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "study.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConfigError(
                    f"{self._folder}: another process uses this search; wait for it to end, or "
                    "choose another folder with --out"
                ) from error
            self._study = self._open_study()
            yield self.trials()

    def trials(self) -> list[Trial]:
        """The finished trials, in order."""
        return [self._read(number, trial) for number, trial in enumerate(self._finished())]

    def best(self) -> Trial | None:
        """The finished trial with the best score, the earliest of equal ones, or None."""
        done = [t for t in self.trials() if t.status == "done" and t.score is not None]
        sign = 1 if self.objective.higher_is_better else -1
        return max(done, key=lambda t: sign * (t.score or 0.0), default=None)

    def job_of(self, trial: Trial) -> Job:
        """The contract of a trial; raises ConfigError if its values do not fit together."""
        return self._space.apply(self._job, trial.values)

    def run_trial(self, train: Callable[[Trial, Job, Progress], Result]) -> Trial:
        """Make the next trial; `train` trains with this job and callback.

        A trial that diverges, or whose values do not fit together or cannot be trained, ends
        without a score, and the search avoids such values. Other errors of `train` are raised, and
        the trial is repeated.
        """
        finished = self._finished()
        number = len(finished)
        state = self._optuna.trial.TrialState
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0]),
            n_startup_trials=_RANDOM,
        )
        asked = self._study.ask(self._distributions)
        same = next((t for t in finished if t.params == asked.params), None)
        if same is not None:  # the same training would give the same score
            earlier = self._read(finished.index(same), same)
            return self._tell(asked, earlier.score, earlier.rounds, earlier.status)
        progress = Progress(self.objective.metric, asked, self._prunes)
        trial = Trial(number, self._values(asked.params))
        try:
            result = train(trial, self.job_of(trial), progress)
        except TrialPruned:
            return self._tell(asked, progress.score, progress.rounds, "pruned")
        except NonFiniteError:
            return self._tell(asked, None, progress.rounds, "diverged: NaN or Inf")
        except (ConfigError, ModelError) as error:  # such as a width that a module cannot have
            first = str(error).splitlines()[0]  # lines of a module's code may follow
            reason = str(error) if isinstance(error, ConfigError) else first
            return self._tell(asked, None, progress.rounds, reason)
        except BaseException:
            self._study.tell(asked, state=state.FAIL)  # not a result: the trial is repeated
            raise
        score = progress.scores.get(result.best_round or progress.rounds)
        if score is None:
            return self._tell(asked, None, 0, f"no evaluation has {self.objective.metric}")
        return self._tell(asked, score, progress.rounds, "done")

    def _tell(self, asked: OptunaTrial, score: float | None, rounds: int, status: str) -> Trial:
        asked.set_user_attr("status", status)
        asked.set_user_attr("rounds", rounds)
        asked.set_user_attr("score", score)
        state = self._optuna.trial.TrialState
        if status == "done":
            self._study.tell(asked, score)
        else:
            self._study.tell(asked, state=state.PRUNED)
        return self.trials()[-1]

    def _finished(self) -> list[FrozenTrial]:
        """The trials with a result; one that was interrupted has none."""
        state = self._optuna.trial.TrialState
        return self._study.get_trials(deepcopy=False, states=(state.COMPLETE, state.PRUNED))

    def _read(self, number: int, trial: FrozenTrial) -> Trial:
        told = trial.user_attrs
        values = self._values(trial.params)
        return Trial(number, values, told.get("score"), told["rounds"], told["status"])

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values of settings: Optuna stores the index of a choice."""
        return {
            name: d.values[params[name]] if isinstance(d, Values) else params[name]
            for name, d in self._space.dimensions.items()
        }

    def _distribution(self, dimension: Range | Values) -> BaseDistribution:
        known = self._optuna.distributions
        if isinstance(dimension, Values):
            indices: BaseDistribution = known.CategoricalDistribution(range(len(dimension.values)))
            return indices
        options: dict[str, Any] = {"log": dimension.log}
        if dimension.step is not None:
            options["step"] = dimension.step
        kind = known.IntDistribution if dimension.is_integer else known.FloatDistribution
        numbers: BaseDistribution = kind(dimension.low, dimension.high, **options)
        return numbers

    def _open_study(self) -> Study:
        optuna = self._optuna
        study: Study = optuna.create_study(
            storage=f"sqlite:///{(self._folder / STUDY).absolute()}",
            study_name="celu",
            direction="maximize" if self.objective.higher_is_better else "minimize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_STARTUP),
            load_if_exists=True,
        )
        recorded = study.user_attrs.get("search")
        if recorded is None:
            study.set_user_attr("search", self._identity)
        else:
            self._compare(recorded)
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # was interrupted
        return study

    def _compare(self, recorded: Mapping[str, Any]) -> None:
        """Raise ConfigError if the folder's search is not this one."""
        # As text: the study has stored lists for tuples.
        own = {name: json.dumps(value, sort_keys=True) for name, value in self._identity.items()}
        there = {name: json.dumps(value, sort_keys=True) for name, value in recorded.items()}
        differing = [name for name in own if there.get(name) != own[name]]
        if differing:
            raise ConfigError(
                f"{self._folder}: expected the search that was started there, got another "
                f"{' and '.join(differing)}; choose another folder with --out"
            )
