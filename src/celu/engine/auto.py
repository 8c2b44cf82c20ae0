"""Chooses W, R, depth and codec during training: `method = "auto"`.

First it saturates the link (`link_tuning`). A few rounds with depth 1 measure the cost of a byte,
of a round trip, of a round's computation and of a local step. From these follow the most exact
codec that does not slow down a round, and the depth at which the link never idles.

Then it tries local steps at all parties, for a few rounds, and decides by what the hosts report of
theirs: the mean weight of the instances of a batch at its third use. With compensated derivatives
that is the share of the step, which the derivative asked for, that is still to be done. If nearly
all of it is, training is limited by the number of updates, and all parties repeat batches. If not,
a batch is learned as fast as it arrives: repeating it at the hosts would fit its noise. The trial
is rolled back, and only the guest, which has the labels, repeats a batch a little. While hosts
repeat batches, every later stage decides again. From the second epoch on, local steps end once
held-out scores no longer improve.

It starts with what helps most, and watches the losses of fresh batches. If they rise, or vary far
more from batch to batch than those of a constant prediction do, then the learning rate is too high
for stale updates: the first rounds are rolled back and repeated with gentler settings. Later stages
are longer and are not rolled back, but settings still become gentler.

A choice depends on outcomes only, so a run can be replayed from its recorded choices.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError
from torch import Tensor

from celu.config.job import Choice, Job, Tuning
from celu.engine.cost_model import Pair
from celu.engine.link_tuning import LinkTuner
from celu.engine.outcome import Outcome
from celu.engine.plan import SAVEPOINT, Stage, first_stage
from celu.engine.schedule import Schedule, Segment
from celu.errors import CheckpointError
from celu.events import UNCHANGED

_REPEATING = (5, 5)  # R of the guest and the hosts, where the time allows: see `LinkTuner`
_GUEST_ONLY = (3, 1)  # if hosts have little left to do
_NO_STEPS = (1, 1)
# Of a derivative, still to be done at the third use of its batch, on the data that we measured. In
# the trial, 0.89 or more where local steps at the hosts save rounds; up to 0.82 where they clearly
# cost some. Later, 0.98 or more, and up to 0.972.
_TO_DO_IN_TRIAL, _TO_DO_LATER = 0.88, 0.976
_TRIAL_STOP = 20
_FIRST_STOPS = (_TRIAL_STOP, 48, 96)  # ends of stages that can be rolled back, in rounds
_MIN_LATER = 48  # rounds of a later stage
_GROWTH = 4  # a later stage ends when the run is this many times as long
_WATCHED_ROUNDS = 64  # at the end of a stage: the fresh batches whose losses are recorded
_LAST, _GROUP = 16, 8  # the mean of the last losses is compared with the best group's before
# What follows when the losses show trouble, one after the other; see `LinkTuner.tuning`.
_CAUTIONS = ("", "no local steps and fewer rounds in flight", "one round in flight")
_CLEARLY = 4.0  # standard errors
_EXPLODED = 2.0  # times the best mean loss; the standard error may then be large as well
# Times the deviation from batch to batch of a constant prediction's loss. On the datasets that we
# measured it is up to 1.83, except on Avazu at the limit of stability: there 6 of 8 first attempts
# have 2.05 or more, and the other two up to 1.42.
_UNSTEADY = 1.95


@dataclass(frozen=True)
class _State:
    """The plan's part of a checkpoint: finished segments, and this one's losses and scores."""

    outcomes: list[Outcome]
    losses: list[FiniteFloat]
    scores: list[FiniteFloat]


_STATE = TypeAdapter(_State)
_Stages = Generator[Stage, Outcome, None]


class AutoPlan:
    """The adaptive plan; see `Plan`."""

    is_adaptive = True

    def __init__(self, job: Job, schedule: Schedule, loss_deviation: float | None = None) -> None:
        """`loss_deviation` is that of a batch's mean loss before anything is learned, if known."""
        self._job = job
        self._loss_deviation = loss_deviation
        self._schedule = schedule
        self._tuner = LinkTuner(job)
        self._stages = self._run()
        self._segment: Segment
        self._losses: list[Tensor | float] = []  # of the watched rounds of this segment
        self._scores: list[float] = []  # the best of the evaluations in this segment, if any
        self._choices_at_savepoint: list[Choice] = []
        self._outcomes: list[Outcome] = []
        self._best_loss = math.inf  # of the groups so far
        self._best_score = -math.inf
        self.choices: list[Choice] = []

    def first(self) -> Stage:
        """See `Plan`."""
        return self._begin(next(self._stages))

    def observe_loss(self, round_: int, loss: Tensor) -> None:
        """See `Plan`."""
        if round_ >= self._segment.stop - _WATCHED_ROUNDS:
            self._losses.append(loss)

    def observe_score(self, score: float) -> None:
        """See `Plan`."""
        if math.isfinite(score):  # AUC is NaN if all rows have one label
            self._scores = [max(score, *self._scores)] if self._scores else [score]

    def next(self, outcome: Outcome) -> Stage | None:
        """See `Plan`."""
        losses, self._losses = [float(loss) for loss in self._losses], []
        scores, self._scores = self._scores, []
        return self._advance(replace(outcome, losses=losses, scores=scores))

    def state_dict(self, round_: int) -> Any:
        """See `Plan`: all outcomes so far, since every choice follows from them."""
        losses = [float(loss) for loss in self._losses]
        state = _State(self._outcomes, losses, self._scores)
        return _STATE.dump_python(state, mode="json", by_alias=True)

    def load_state_dict(self, state: Any, round_: int) -> Stage | None:
        """See `Plan`: repeats all choices from their outcomes."""
        stage: Stage | None = self.first()
        try:
            found = _STATE.validate_python(state)
        except ValidationError as error:
            raise CheckpointError("plan: the checkpoint has no valid outcomes") from error
        for outcome in found.outcomes:
            if stage is None or outcome.segment != stage.segment:
                raise CheckpointError(
                    "plan: this release chooses differently from the checkpoint's outcomes; "
                    "resume with the release of celu that the run started with"
                )
            stage = self._advance(outcome)
        self._losses, self._scores = [*found.losses], [*found.scores]
        return stage

    def _advance(self, outcome: Outcome) -> Stage | None:
        self._outcomes.append(outcome)
        try:
            return self._begin(self._stages.send(outcome))
        except StopIteration:
            return None

    def _begin(self, stage: Stage) -> Stage:
        """Record the choice of a stage."""
        if stage.save:
            self._choices_at_savepoint = list(self.choices)
        if stage.restore:
            self.choices = list(self._choices_at_savepoint)
        tuning = dict(stage.segment.tuning)
        self.choices.append(Choice(round=stage.segment.start, reason=stage.reason, **tuning))
        self._segment = stage.segment
        return stage

    def _run(self) -> _Stages:
        stage = first_stage(self._job, self._schedule)
        outcome = yield Stage(stage.segment, reason="measuring with one round in flight")
        self._tuner.measure(outcome)
        start = round_ = outcome.segment.stop
        R, caution, reason, before = _REPEATING, 0, "", stage.segment.tuning
        num_attempts = 0  # at the rounds from `start` on
        while round_ < self._schedule.num_rounds:
            stop = self._next_stop(round_, after=_TRIAL_STOP if num_attempts else round_)
            tuning = self._tuner.tuning(_NO_STEPS if caution else R, caution)
            can_restart = round_ < _FIRST_STOPS[-1]
            if round_ == start:  # the costs are part of every attempt's reason
                num_attempts += 1
                reason = "; ".join(filter(None, [reason, self._tuner.explain(tuning)]))
            outcome = yield Stage(
                Segment(round_, stop, tuning),
                save=SAVEPOINT if round_ == start and num_attempts == 1 else None,
                restore=SAVEPOINT if round_ == start and num_attempts > 1 else None,
                drop_savepoints=not can_restart,
                reason=UNCHANGED[0] if tuning == before else reason or self._tuner.explain(tuning),
            )
            before = tuning
            self._tuner.measure(outcome)
            trouble = self._trouble(outcome, can_restart=can_restart, caution=caution)
            level = self._more_caution(caution, tuning) if trouble else caution
            if level > caution:
                caution = level
                rolls_back, reason = can_restart, f"{trouble}: {_CAUTIONS[caution]}"
            else:
                was_trial = num_attempts == 1 and round_ == start
                least = _TO_DO_IN_TRIAL if was_trial else _TO_DO_LATER
                R, reason = self._choose(outcome, R, least)
                # Not if the hosts had no time for local steps anyway.
                rolls_back = was_trial and R != _REPEATING and self._tuner.tuning(R) != tuning
                if caution > 0 and 3 * stop >= 2 * self._schedule.num_rounds:
                    caution, reason = 2, "the last third of an unsteady run: one round in flight"
                elif caution == 2 and not can_restart:  # the start is over: use the link again
                    caution, reason = 1, "the loss no longer rises: more rounds in flight"
            if rolls_back:
                reason += "; rolled back"
                self._best_loss, self._best_score = math.inf, -math.inf  # of what is rolled back
            round_ = start if rolls_back else stop

    def _choose(self, outcome: Outcome, R: Pair, least: float) -> tuple[Pair, str]:
        """R for the next stage, before any caution, and the reason if it changes.

        Hosts repeat batches if `least` of their derivatives is still to be done.
        """
        best, scores = self._best_score, outcome.scores
        self._best_score = max([best, *scores])
        no_longer_unseen = outcome.segment.stop > self._schedule.rounds_per_epoch
        if R == _NO_STEPS or "R" in self._job.given():
            return R, ""
        if no_longer_unseen and scores and max(scores) < best:
            return _NO_STEPS, "held-out scores no longer improve: no local steps"
        if R == _GUEST_ONLY:
            return R, ""
        weights = [host.reuse_weight for host in outcome.hosts if host.reuse_weight > 0]
        if not weights:
            return _GUEST_ONLY, "no host has used a batch twice: only the guest repeats batches"
        to_do = fmean(weights)
        chosen = _REPEATING if to_do >= least else _GUEST_ONLY
        who = "all parties repeat" if chosen == _REPEATING else "only the guest repeats"
        return chosen, (
            f"{to_do:.1%} of a derivative is still to be done at its third use: {who} batches"
        )

    def _trouble(self, outcome: Outcome, *, can_restart: bool, caution: int) -> str:
        """What is wrong with the losses of fresh batches; empty if nothing is.

        That they vary too much or end clearly above their best counts only for the first attempt
        at a stage that can be rolled back: later on, losses differ for other reasons.
        """
        earlier, latest = outcome.losses[:-_LAST], outcome.losses[-_LAST:]
        if len(earlier) < _GROUP:
            return ""
        starts = range(0, len(earlier) - _GROUP + 1, _GROUP)
        best = min([self._best_loss, *(fmean(earlier[i : i + _GROUP]) for i in starts)])
        deviation, last = _deviation(outcome.losses), fmean(latest)
        limit = best + _CLEARLY * deviation * math.sqrt(1 / _LAST + 1 / _GROUP)
        may_differ = caution > 0 or not can_restart
        if last > _EXPLODED * best > 0 or (last > limit and not may_differ):
            return "the loss has risen"
        usual = self._loss_deviation
        if usual is not None and _swing(outcome.losses) > _UNSTEADY * usual and not may_differ:
            return "the loss is unsteady"
        self._best_loss = min(best, last)
        return ""

    def _more_caution(self, caution: int, tuning: Tuning) -> int:
        """The next level of caution that makes a difference; the same level if none does."""
        levels = range(caution + 1, len(_CAUTIONS))
        return next((n for n in levels if self._tuner.tuning(_NO_STEPS, n) != tuning), caution)

    def _next_stop(self, round_: int, after: int) -> int:
        """The end of the stage that starts at `round_`, after round `after`.

        Between two stages the link idles for a round trip. Stages also end with epochs, unless too
        few rounds would be left to decide by.
        """
        num_rounds = self._schedule.num_rounds
        for stop in _FIRST_STOPS:
            if max(round_, after) < stop:
                return min(stop, num_rounds)
        epochs = self._schedule.rounds_per_epoch
        while epochs < round_ + _MIN_LATER:
            epochs *= 2
        return min(_GROWTH * round_, epochs, num_rounds)


def _deviation(losses: list[float]) -> float:
    """The standard deviation from batch to batch, without a trend and without a few outliers."""
    return 1.4826 * median(_steps(losses)) / math.sqrt(2)


def _swing(losses: list[float]) -> float:
    """The same with outliers: a loss may explode, and then stay where nothing is learned."""
    return fmean(_steps(losses)) * math.sqrt(math.pi) / 2


def _steps(losses: list[float]) -> list[float]:
    return [abs(b - a) for a, b in pairwise(losses)]
