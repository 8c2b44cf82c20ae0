"""Chooses W, R, depth and codec during training: `method = "auto"`.

First it saturates the link (`link_tuning`). Some rounds with depth 1 measure the cost of a byte, of
a round trip, of a round's computation and of a local step. From these follow the most exact codec
that does not slow down a round, the depth at which the link never idles, and how many local steps
fit into the remaining time.

Then it chooses the number of local steps by trial. A single step does not show whether it helps: a
step that increases the loss on the next batch may improve the model fifty rounds later. So several
variants, pairs (R of the guest, R of the hosts), train from one savepoint for some rounds on the
same batches. The variant that scores best on unseen rows continues; the others are rolled back. In
the first epoch the unseen rows are the fresh batches of the trial's second half, which are scored
before the model trains on them, at no extra cost. Later, when the model has seen every training
row, they are the held-out rows.

Fewer local steps replace the current R only if they score better by more than the standard error of
the difference, since local steps pay off late. The first R has local steps at the guest only, which
help on most datasets. If more local steps win, twice as many are tried right away. The first trial
is early. The next ones follow when the run has become several times as long or an epoch ends, since
local steps that help at first may overfit later.

A choice depends on outcomes only, so a run can be replayed from its recorded choices.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from pydantic import TypeAdapter, ValidationError

from celu.config.job import Choice, Job, Tuning
from celu.engine.cost_model import Costs
from celu.engine.link_tuning import CODEC_LADDER, LinkTuner, Pair
from celu.engine.outcome import Outcome
from celu.engine.plan import SAVEPOINTS, Stage, first_stage
from celu.engine.schedule import Schedule, Segment
from celu.errors import CheckpointError
from celu.events import UNCHANGED

_FILL_ROUNDS = 10  # of a segment that measures a saturated link
_FIRST_PAIR = (5, 1)
_OTHER_PAIRS = ((1, 3), (3, 3), (1, 1))
_RETRY_FACTORS = (4, 16)  # the next trial starts when the run is 4 to 16 times as long
_TRIAL_ROUNDS = (32, 64)  # of the first trial: min, max

_OUTCOMES = TypeAdapter(list[Outcome])
_Stages = Generator[Stage, Outcome, None]


class AutoPlan:
    """The adaptive plan; see `Plan`."""

    is_adaptive = True

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._job = job
        self._schedule = schedule
        self._tuner = LinkTuner(job)
        self._stages = self._run()
        self._whole: Segment  # the stage's segment before it was cut at an evaluation
        self._fresh: list[float] = []
        self._savepoints: dict[str, list[Choice]] = {}
        self._outcomes: list[Outcome] = []
        self.choices: list[Choice] = []

    def first(self) -> Stage:
        """See `Plan`."""
        return self._begin(next(self._stages))

    def next(self, outcome: Outcome) -> Stage | None:
        """See `Plan`."""
        done = outcome.segment
        self._outcomes.append(outcome)
        self._fresh += outcome.fresh
        if done.stop < self._whole.stop:  # it was cut at an evaluation of the contract
            return Stage(self._cut(replace(self._whole, start=done.stop)), reason=UNCHANGED[0])
        try:
            return self._begin(self._stages.send(replace(outcome, fresh=self._fresh)))
        except StopIteration:
            return None

    def state_dict(self, round_: int) -> Any:
        """See `Plan`: all outcomes so far, since every choice follows from them."""
        return _OUTCOMES.dump_python(self._outcomes, mode="json", by_alias=True)

    def load_state_dict(self, state: Any, round_: int) -> Stage | None:
        """See `Plan`: repeats all choices from their outcomes."""
        stage: Stage | None = self.first()
        try:
            for outcome in _OUTCOMES.validate_python(state):
                if stage is None or outcome.segment != stage.segment:
                    raise CheckpointError(
                        "plan: this release chooses differently from the checkpoint's outcomes; "
                        "resume with the release of celu that the run started with"
                    )
                stage = self.next(outcome)
        except ValidationError as error:
            raise CheckpointError("plan: the checkpoint has no valid outcomes") from error
        return stage

    def _begin(self, stage: Stage) -> Stage:
        """Record the choice of a stage, and cut it at the contract's next evaluation."""
        if stage.save:
            self._savepoints[stage.save] = list(self.choices)
        if stage.restore:
            self.choices = list(self._savepoints[stage.restore])
        self._whole, self._fresh = stage.segment, []
        tuning = dict(stage.segment.tuning)
        self.choices.append(Choice(round=stage.segment.start, reason=stage.reason, **tuning))
        return replace(stage, segment=self._cut(stage.segment))

    def _cut(self, segment: Segment) -> Segment:
        """The part of a segment before the contract's next evaluation.

        A trial is cut there as well, because a replay of the run is. But it skips the evaluation,
        which takes as long as many rounds and is usually rolled back.
        """
        evaluation = self._schedule.evaluation_after(segment.start)
        is_trial = segment.scores_fresh_batches or segment.evaluates
        if segment.stop < evaluation or (is_trial and segment.stop == evaluation):
            return segment
        return replace(segment, stop=evaluation, evaluates=not is_trial)

    def _run(self) -> _Stages:
        outcome = yield replace(
            first_stage(self._job, self._schedule), reason="measuring with one round in flight"
        )
        costs = self._tuner.first_costs(outcome)
        round_ = outcome.segment.stop
        end = self._schedule.num_rounds
        for _ in CODEC_LADDER:  # repeat until the chosen codec has been measured
            if round_ >= end:
                return
            tuning = self._tuner.tuning(costs, (1, 1))
            outcome = yield self._stage(
                round_, round_ + _FILL_ROUNDS, tuning, self._tuner.explain(costs, tuning)
            )
            round_, costs = outcome.segment.stop, self._tuner.update_costs(outcome, costs)
            if self._tuner.tuning(costs, (1, 1)).codecs == tuning.codecs:
                break
        R = self._tuner.clamp(costs, *_FIRST_PAIR)
        others = [self._tuner.clamp(costs, *pair) for pair in _OTHER_PAIRS]
        savepoint: str | None = None
        rounds = max(_TRIAL_ROUNDS[0], min(_TRIAL_ROUNDS[1], end // 25))
        reason = "the link is saturated"
        while round_ < end:
            trial = max(rounds, round_ // 8)
            pairs = [*dict.fromkeys(pair for pair in others if pair != R), R]
            while len(pairs) > 1 and round_ + trial < end and "R" not in self._tuner.fixed:
                R, savepoint, reason = yield from self._trial(
                    round_, trial, pairs, costs, savepoint, reason
                )
                round_ += trial
                more = self._tuner.double(costs, R)  # more steps won, so even more may
                pairs = [more, R] if not _at_most(R, pairs[-1]) and more != R else []
            stage = self._stage(
                round_, self._next_trial(round_), self._tuner.tuning(costs, R), reason
            )
            outcome = yield replace(stage, restore=savepoint, drop_savepoints=True)
            round_, costs, savepoint = (
                outcome.segment.stop,
                self._tuner.update_costs(outcome, costs),
                None,
            )
            others, reason = self._challengers(costs, R), UNCHANGED[0]

    def _trial(
        self,
        start: int,
        rounds: int,
        pairs: list[Pair],
        costs: Costs,
        savepoint: str | None,
        previous_reason: str,
    ) -> Generator[Stage, Outcome, tuple[Pair, str | None, str]]:
        """Train each pair from the same state: `savepoint`, or else the current state.

        The last of `pairs` is the current R. Returns the best pair, the savepoint of its state
        (None if it is the current state) and the reason.
        """
        scores: dict[Pair, list[float]] = {}
        base = savepoint or SAVEPOINTS[0]
        best_at = next(name for name in SAVEPOINTS if name != base)
        save, restore = (None, base) if savepoint else (base, None)
        best = pairs[-1]
        for pair in pairs:
            why = f"{previous_reason}; trial: R = {pair[0]} at the guest, {pair[1]} at the hosts"
            stage = self._stage(start, start + rounds, self._tuner.tuning(costs, pair), why)
            unseen = start + rounds <= self._schedule.rounds_per_epoch
            segment = replace(stage.segment, scores_fresh_batches=unseen, evaluates=not unseen)
            outcome = yield replace(stage, segment=segment, save=save, restore=restore)
            scores[pair] = outcome.fresh[rounds // 2 :] if unseen else [outcome.held_out or 0.0]
            challengers = {p: mean(s) for p, s in scores.items() if p != pairs[-1]}
            best = max(challengers, key=challengers.__getitem__)
            save, restore = best_at if best == pair else None, base
        clearly = _at_most(best, pairs[-1])
        stays = not _beats(scores[best], scores[pairs[-1]], clearly=clearly)
        best = pairs[-1] if stays else best
        shown = ", ".join(f"{g} and {h}: {abs(mean(s)):.4f}" for (g, h), s in scores.items())
        verb = "stays after" if stays else "scored best in"
        reason = f"R = {best[0]} and {best[1]} {verb} {rounds} rounds ({shown})"
        return best, None if stays else best_at, reason

    def _challengers(self, costs: Costs, now: Pair) -> list[Pair]:
        """The pairs to try against the current one."""
        (guest, host), (first_guest, _), (_, first_host) = now, _FIRST_PAIR, _OTHER_PAIRS[0]
        pairs = (
            (guest // 2, host // 2),
            (guest, 1 if host > 1 else first_host),
            (1 if guest > 1 else first_guest, host),
        )
        return [
            self._tuner.double(costs, now),
            *(self._tuner.clamp(costs, *pair) for pair in pairs),
        ]

    def _next_trial(self, round_: int) -> int:
        """The round of the next trial: 4 to 16 times as far, at the end of an epoch if possible."""
        epoch = self._schedule.rounds_per_epoch
        while epoch <= round_:
            epoch *= 2
        earliest, latest = (factor * round_ for factor in _RETRY_FACTORS)
        return max(earliest, min(latest, epoch))

    def _stage(self, start: int, stop: int, tuning: Tuning, reason: str) -> Stage:
        stop = min(stop, self._schedule.num_rounds)
        return Stage(Segment(start, stop, tuning, evaluates=False), reason=reason)


def _at_most(pair: Pair, other: Pair) -> bool:
    """Whether no party does more local steps with one pair than with the other."""
    return all(ours <= theirs for ours, theirs in zip(pair, other, strict=True))


def _beats(challenger: list[float], current: list[float], *, clearly: bool) -> bool:
    """Whether the challenger's mean score is higher; clearly: by more than the standard error."""
    gains = [new - old for new, old in zip(challenger, current, strict=True)]
    error = stdev(gains) / math.sqrt(len(gains)) if clearly and len(gains) > 1 else 0.0
    return mean(gains) > error
