"""Chooses W, R, depth and codec during training: `method = "auto"`.

First it saturates the link (`link_tuning`). A few rounds with small messages measure the cost of a
byte, of a round trip, of a round's computation and of a local step. From these follow the most
exact codec that does not slow down a round, and the depth at which the link never idles.

Then it tries local steps at all parties, for a few rounds, and decides by what the hosts report of
theirs: the mean weight of the instances of a batch at its third use. With compensated derivatives
that is the share of the step, which the derivative asked for, that is still to be done. If nearly
all of it is, training is limited by the number of updates, and all parties repeat batches. If not,
a batch is learned as fast as it arrives: repeating it at the hosts would fit its noise. The trial
is rolled back, and only the guest, which has the labels, repeats a batch a little, until the
second epoch repeats every row. While hosts repeat batches, every later stage decides again, and
from the second epoch on local steps end once the scores of validation rows no longer improve.

It starts with what helps most, and watches the losses of fresh batches. If they explode, or are
above the loss of a constant prediction after some dozens of rounds and do not fall, then the
learning rate is too high for stale updates: the first rounds are rolled back and repeated with
gentler settings. Later stages are longer and are not rolled back, but settings still become
gentler.

A choice depends on outcomes only, so a run can be replayed from its recorded choices.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError
from torch import Tensor

from celu.config.job import Choice, Job, Tuning
from celu.engine.cost_model import Pair
from celu.engine.link_tuning import LinkTuner
from celu.engine.outcome import Outcome
from celu.engine.plan import SAVEPOINT, Stage, first_stage
from celu.engine.schedule import Schedule, Segment
from celu.errors import CheckpointError, NonFiniteError
from celu.events import UNCHANGED
from celu.models.losses import ConstantLoss

_REPEATING = (5, 5)  # R of the guest and the hosts, where the time allows: see `LinkTuner`
_GUEST_ONLY = (3, 1)  # if hosts have little left to do
_NO_STEPS = (1, 1)
# The share that must be left for the hosts to repeat batches. With AdaGrad from 0 and with Adam,
# the first gradient of a parameter moves it by the whole learning rate, however small it is: rows
# with rare ids are learned at once, and overfit while the mean over all rows is still high. On the
# data that we measured, 0.98 or more is left where local steps at the hosts then save rounds, up
# to 0.973 where they cost some; with AdaGrad from 0.1 they save rounds at 0.9 already.
_LEFT, _LEFT_IF_SCALED = 0.88, 0.976
_FIRST_STOP = 72  # in rounds: stages that start before it can be rolled back
_MIN_LATER = 48  # rounds of a later stage
_GROWTH = 4  # a later stage ends when the run is this many times as long
_WATCHED_ROUNDS = _FIRST_STOP  # at the end of a stage: the fresh batches whose losses are recorded
_LAST, _GROUP = 16, 8  # losses whose mean is judged
_MAX_CAUTION = 2  # when the losses show trouble, one level after the other: `LinkTuner.tuning`
_DIVERGED = "NaN or Inf"
_EXPLODED = 2.0  # times the best mean loss before
# Standard errors above the mean loss of a constant prediction. On the data that we measured,
# healthy runs are far below it after _FIRST_STOP rounds.
_CLEARLY = 2.0


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

    def __init__(
        self, job: Job, schedule: Schedule, constant_loss: ConstantLoss | None = None
    ) -> None:
        """`constant_loss` is the mean loss of a batch for a constant prediction, if known."""
        self._job = job
        self._constant_loss = constant_loss
        self._reference: ConstantLoss | None = None  # as bad as if nothing is learned
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
        stage = replace(first_stage(self._job, self._schedule), reason="measuring")
        R, caution, can_restart = _REPEATING, 0, True
        while True:
            outcome = yield stage
            self._tuner.measure(outcome)
            before, stop = stage.segment.tuning, stage.segment.stop
            trouble = self._trouble(outcome, caution)
            level = self._more_caution(caution, before) if trouble else caution
            if level > caution or trouble == _DIVERGED:
                if level == caution:
                    raise NonFiniteError(
                        f"NaN or Inf within {stop} rounds, in training or an evaluation, with the "
                        "gentlest settings, too; lower the learning rate, or look for extreme "
                        "values in the inputs, held-out rows included"
                    )
                caution = level
                rolls_back, cause = can_restart, trouble
            else:
                R, cause = self._choose(outcome, R)
                rolls_back = stage.save is not None and R != _REPEATING
                if caution > 0 and 3 * stop >= 2 * self._schedule.num_rounds:
                    caution, cause = 2, "the last third of an unsteady run"
                elif caution == 2 and not can_restart:  # the start is over: use the link again
                    caution, cause = 1, "the loss no longer rises"
                elif caution:
                    cause = ""  # there are no local steps, whatever was chosen
            if rolls_back:
                self._best_loss, self._best_score = math.inf, -math.inf  # of what is rolled back
            elif stop == self._schedule.num_rounds:
                return
            wanted = _NO_STEPS if caution else R
            tuning = self._tuner.tuning(wanted, caution)
            is_decided = bool(cause) and not caution
            changes = " and ".join(_changes(before, tuning, wanted, is_decided=is_decided))
            reasons = [": ".join(filter(None, [cause, changes]))]
            reasons += ["rolled back"] if rolls_back else []
            is_same = (tuning.depth, tuning.codecs) == (before.depth, before.codecs)
            if stage.save is not None or rolls_back or not is_same:
                reasons.append(self._tuner.explain(tuning))
            round_ = 0 if rolls_back else stop
            can_restart = round_ < _FIRST_STOP
            stage = Stage(
                Segment(round_, self._next_stop(round_), tuning),
                restore=SAVEPOINT if rolls_back else None,
                drop_savepoints=not can_restart,
                reason=UNCHANGED[0] if tuning == before else "; ".join(filter(None, reasons)),
            )

    def _choose(self, outcome: Outcome, R: Pair) -> tuple[Pair, str]:
        """R for the next stage, before any caution, and what decided about it, if anything."""
        best, scores = self._best_score, outcome.scores
        self._best_score = max([best, *scores])
        no_longer_unseen = outcome.segment.stop > self._schedule.rounds_per_epoch
        if R == _NO_STEPS or "R" in self._job.given():
            return R, ""
        if no_longer_unseen and scores and max(scores) < best:
            return _NO_STEPS, "validation scores no longer improve"
        if R == _GUEST_ONLY:
            if outcome.segment.stop < self._schedule.rounds_per_epoch:
                return R, ""
            return _NO_STEPS, "the next epoch repeats every row"
        weights = [host.reuse_weight for host in outcome.hosts if host.reuse_weight > 0]
        if not weights:
            return _GUEST_ONLY, "no host has used a batch twice"
        to_do = fmean(weights)
        least = _LEFT_IF_SCALED if self._job.optimizer.is_scaled else _LEFT
        chosen = _REPEATING if to_do >= least else _GUEST_ONLY
        return chosen, f"{to_do:.1%} of a derivative is still to be done at its third use"

    def _trouble(self, outcome: Outcome, caution: int) -> str:
        """What is wrong with the losses of fresh batches; empty if nothing is."""
        if any(party.diverged for party in (outcome.guest, *outcome.hosts)):
            return _DIVERGED
        losses, best, before_last = outcome.losses, self._best_loss, self._best_loss
        last = fmean(losses[-_LAST:]) if losses else 0.0
        for start in range(0, len(losses) - _GROUP + 1, _GROUP):
            mean = fmean(losses[start : start + _GROUP])
            # The large first steps of some optimizers may do that; but then the loss recovers.
            if mean > _EXPLODED * best > 0 and last > best:
                return "the loss has exploded"
            best = min(best, mean)
            if start + _GROUP <= len(losses) - _LAST:
                before_last = best
        self._best_loss = best
        if self._reference is None:
            self._reference = self._constant_loss or _initial_loss(losses)
        # In the first rounds, and at gentler settings, a loss may be high for a while.
        if self._reference is not None and caution == 0 and outcome.segment.stop >= _FIRST_STOP:
            constant, deviation = self._reference
            limit = constant + _CLEARLY * deviation / math.sqrt(_LAST)
            if last > max(limit, before_last):
                return "the loss is above that of a constant prediction and does not fall"
        return ""

    def _more_caution(self, caution: int, tuning: Tuning) -> int:
        """The next level of caution that makes a difference; the same level if none does."""
        levels = range(caution + 1, _MAX_CAUTION + 1)
        return next((n for n in levels if self._tuner.tuning(_NO_STEPS, n) != tuning), caution)

    def _next_stop(self, round_: int) -> int:
        """The end of the stage that starts at `round_`.

        Between two stages the link idles for a round trip. Stages also end with epochs, unless too
        few rounds would be left to decide by; one that would end shortly before an epoch does is
        longer instead.
        """
        num_rounds = self._schedule.num_rounds
        if round_ < _FIRST_STOP:
            return min(_FIRST_STOP, num_rounds)
        epochs = self._schedule.rounds_per_epoch
        while epochs < round_ + _MIN_LATER:
            epochs *= 2
        stop = min(_GROWTH * round_, epochs, num_rounds)
        return epochs if stop < epochs < min(stop + _MIN_LATER, num_rounds) else stop


def _changes(before: Tuning, tuning: Tuning, wanted: Pair, *, is_decided: bool) -> list[str]:
    """What differs between two tunings in R and depth; `is_decided`: R in any case.

    It tells what is so, not what was `wanted`: the time of a round, or the contract, may limit R.
    """
    found = []
    R = _pair(tuning)
    if is_decided or _pair(before) != R:
        found.append(_who_repeats(R, wanted))
    if tuning.depth != before.depth:
        more = "more rounds" if tuning.depth > before.depth else "fewer rounds"
        found.append("one round in flight" if tuning.depth == 1 else f"{more} in flight")
    if not found and tuning.codecs != before.codecs:
        found.append(f"messages in {tuning.codecs.activation}")
    return found


def _who_repeats(R: Pair, wanted: Pair) -> str:
    guest, hosts = (steps > 1 for steps in R)
    if guest and hosts:
        return "all parties repeat batches"
    if not guest and not hosts:
        return "no local steps" + (", for which a round has no time" if wanted != R else "")
    late = wanted[guest] > 1  # the other one would repeat them, too
    if guest:
        return "only the guest repeats batches" + (", the hosts have no time" if late else "")
    return "only the hosts repeat batches" + (", the guest has no time" if late else "")


def _pair(tuning: Tuning) -> Pair:
    return tuning.for_role("guest")[1], tuning.for_role("host")[1]


def _initial_loss(losses: list[float]) -> ConstantLoss | None:
    """The loss before anything is learned, from that of the first batches."""
    if len(losses) < _GROUP:
        return None
    return ConstantLoss(fmean(losses[:_GROUP]), stdev(losses[:_GROUP]))
