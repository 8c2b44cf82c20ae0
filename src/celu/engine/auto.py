"""Choosing while training: how to fill the line, and which party's local steps pay.

First the line. Some rounds, one at a time, show what a byte, a round trip, a round's computing and
a local stage cost. From these follow the most exact codec that does not hold up the computing, the
depth at which the line never idles, and how many local steps fit into the time that it leaves.

Then the local steps. Whether they pay cannot be read off a single one: a stage that makes the loss
of the next batch worse may well be one that makes the model better fifty rounds on. So it is tried
out. From one state, each of a few pairs (R of the guest, R of the hosts) trains for some rounds on
the same batches; the best goes on from where it came, and the others are as if they had never been.
The best is the one that foretells best what it has not seen: in the first epoch the fresh batches
of the trial's second half, before it learns from them, which costs nothing; later, when every row
has been seen, the held-out rows. Steps that hold are given up for fewer only where these are better
by more than the standard error of the difference, batch by batch, since what steps gain shows late;
at first the guest's hold, which pay on most data. Where more pay, twice as many are tried at
once. It is done early, and again when training has become many times as long or rows begin to be
seen again: what paid at first may overfit later.

A choice is a function of outcomes alone, so a run that records its choices can be repeated by them.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from pydantic import TypeAdapter, ValidationError

from celu.codecs.named import find_codec
from celu.config.job import Choice, Codecs, Job, Tuning
from celu.engine.cost_model import Costs
from celu.engine.plan import MAX_W, SAVEPOINTS, Outcome, Stage, first_stage
from celu.engine.schedule import Schedule, Segment
from celu.errors import CheckpointError

# From exact to small. Below four bits, convergence suffers.
LADDER = ("fp32", "bf16", "int8", "4bit")
# A codec is worth its errors only where it saves more than this share of a round's time.
_WORTH = 1.1
_FILL_ROUNDS = 10
_FIRST_PAIR = (5, 1)
_OTHER_PAIRS = ((1, 3), (3, 3), (1, 1))
_SMALLEST_W = 5
_AGAIN = (4, 16)  # try again when training is so many times as long: at least, at most
_TRIAL_ROUNDS = (32, 64)  # of the first trial: at least, at most

_OUTCOMES = TypeAdapter(list[Outcome])
Pair = tuple[int, int]  # R of the guest, R of the hosts
_Course = Generator[Stage, Outcome, None]


class AutoPlan:
    """See `Plan`."""

    chooses = True

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._job = job
        self._schedule = schedule
        written = dict(job.tuning())
        self._given: dict[str, Any] = {name: written[name] for name in job.given()}
        self._costs: dict[str, Costs] = {}  # by the codec with which they were measured
        self._course = self._run()
        self._goal: Segment  # of the stage at hand, which an evaluation may interrupt
        self._fresh: list[float] = []
        self._marks: dict[str, list[Choice]] = {}
        self._outcomes: list[Outcome] = []
        self.choices: list[Choice] = []

    def first(self) -> Stage:
        """See `Plan`."""
        return self._take(next(self._course))

    def after(self, outcome: Outcome) -> Stage | None:
        """See `Plan`."""
        done = outcome.segment
        self._outcomes.append(outcome)
        self._fresh += outcome.fresh
        if done.stop < self._goal.stop:  # an evaluation of the contract's came in between
            return Stage(self._cut(replace(self._goal, start=done.stop)), reason="as before")
        try:
            return self._take(self._course.send(replace(outcome, fresh=self._fresh)))
        except StopIteration:
            return None

    def kept(self, round_: int) -> Any:
        """See `Plan`: all outcomes, from which every choice follows."""
        return _OUTCOMES.dump_python(self._outcomes, mode="json")

    def go_on(self, kept: Any, round_: int) -> Stage | None:
        """See `Plan`: chooses again what was chosen."""
        stage: Stage | None = self.first()
        try:
            for outcome in _OUTCOMES.validate_python(kept):
                if stage is None or outcome.segment != stage.segment:
                    raise CheckpointError(
                        "plan: expected outcomes from which the same choices follow, got others; "
                        "go on with the release of celu that the run began with"
                    )
                stage = self.after(outcome)
        except ValidationError as error:
            raise CheckpointError("plan: expected outcomes, got something else") from error
        return stage

    def _take(self, stage: Stage) -> Stage:
        """Record a stage, and cut it at the contract's next evaluation."""
        if stage.save:
            self._marks[stage.save] = list(self.choices)
        if stage.restore:
            self.choices = list(self._marks[stage.restore])
        self._goal, self._fresh = stage.segment, []
        tuning = dict(stage.segment.tuning)
        self.choices.append(Choice(round=stage.segment.start, reason=stage.reason, **tuning))
        return replace(stage, segment=self._cut(stage.segment))

    def _cut(self, segment: Segment) -> Segment:
        """As much of a segment as there is before the contract's next evaluation.

        What is only tried backoff there as well, since a run that is told the choices does; but it
        is not evaluated, which takes as long as many rounds and would mostly be undone.
        """
        evaluation = self._schedule.evaluation_after(segment.start)
        is_tried = segment.judged or segment.scored
        if segment.stop < evaluation or (is_tried and segment.stop == evaluation):
            return segment
        return replace(segment, stop=evaluation, scored=not is_tried)

    def _run(self) -> _Course:
        outcome = yield replace(
            first_stage(self._job, self._schedule), reason="one round at a time, to measure"
        )
        costs = Costs.of(outcome, *self._bytes(outcome.segment.tuning.codecs))
        self._note(outcome, costs)
        here = outcome.segment.stop
        end = self._schedule.num_rounds
        for _ in LADDER:  # fill the line; again, until what a codec costs has shown
            if here >= end:
                return
            tuning = self._filling(costs, (1, 1))
            outcome = yield self._step(here, here + _FILL_ROUNDS, tuning, self._why(costs, tuning))
            here, costs = outcome.segment.stop, self._note(outcome, costs)
            if self._filling(costs, (1, 1)).codecs == tuning.codecs:
                break
        R = self._within(costs, *_FIRST_PAIR)
        others = [self._within(costs, *pair) for pair in _OTHER_PAIRS]
        held: str | None = None
        rounds = max(_TRIAL_ROUNDS[0], min(_TRIAL_ROUNDS[1], end // 25))
        reason = "the line is full"
        while here < end:
            trial = max(rounds, here // 8)
            pairs = [*dict.fromkeys(pair for pair in others if pair != R), R]
            while len(pairs) > 1 and here + trial < end and "R" not in self._given:
                R, held, reason = yield from self._trial(here, trial, pairs, costs, held, reason)
                here += trial
                more = self._more(costs, R)  # what paid may pay more
                pairs = [more, R] if not _fewer(R, pairs[-1]) and more != R else []
            stage = self._step(here, self._next_trial(here), self._filling(costs, R), reason)
            outcome = yield replace(stage, restore=held, forget=True)
            here, costs, held = outcome.segment.stop, self._note(outcome, costs), None
            others, reason = self._others(costs, R), "as before"

    def _trial(
        self,
        start: int,
        rounds: int,
        pairs: list[Pair],
        costs: Costs,
        held: str | None,
        before: str,
    ) -> Generator[Stage, Outcome, tuple[Pair, str | None, str]]:
        """Have each pair train from the same state: the one at the mark `held`, or as it is.

        The best; the mark at which its state is held, None if it is the state as it is; and why.
        """
        scores: dict[Pair, list[float]] = {}
        base = held or SAVEPOINTS[0]
        best_at = next(mark for mark in SAVEPOINTS if mark != base)
        save, restore = (None, base) if held else (base, None)
        best = pairs[-1]
        for pair in pairs:
            why = f"{before}; trial of R {pair[0]} at the guest and {pair[1]} at the hosts"
            stage = self._step(start, start + rounds, self._filling(costs, pair), why)
            unseen = start + rounds <= self._schedule.rounds_per_epoch
            segment = replace(stage.segment, judged=unseen, scored=not unseen)
            outcome = yield replace(stage, segment=segment, save=save, restore=restore)
            scores[pair] = outcome.fresh[rounds // 2 :] if unseen else [outcome.held_out or 0.0]
            challengers = {p: mean(s) for p, s in scores.items() if p != pairs[-1]}
            best = max(challengers, key=challengers.__getitem__)
            save, restore = best_at if best == pair else None, base
        clearly = _fewer(best, pairs[-1])
        holds = not _beats(scores[best], scores[pairs[-1]], clearly=clearly)
        best = pairs[-1] if holds else best
        shown = ", ".join(f"{g} and {h}: {abs(mean(s)):.4f}" for (g, h), s in scores.items())
        words = "hold after" if holds else "did best in"
        reason = f"R {best[0]} and {best[1]} {words} {rounds} rounds ({shown})"
        return best, None if holds else best_at, reason

    def _others(self, costs: Costs, now: Pair) -> list[Pair]:
        """The R of guest and hosts to be tried beside those that hold."""
        (guest, host), (some, _), (_, some_at_hosts) = now, _FIRST_PAIR, _OTHER_PAIRS[0]
        pairs = (
            (guest // 2, host // 2),
            (guest, 1 if host > 1 else some_at_hosts),
            (1 if guest > 1 else some, host),
        )
        return [self._more(costs, now), *(self._within(costs, *pair) for pair in pairs)]

    def _next_trial(self, here: int) -> int:
        """When to try again: long after, or where an epoch ends, but not at once."""
        epoch = self._schedule.rounds_per_epoch
        while epoch <= here:
            epoch *= 2
        return max(_AGAIN[0] * here, min(_AGAIN[1] * here, epoch))

    def _more(self, costs: Costs, now: Pair) -> Pair:
        """Twice the local steps, of those who make any."""
        return self._within(costs, *(2 * R if R > 1 else 1 for R in now))

    def _within(self, costs: Costs, guest: int, host: int) -> Pair:
        """As much of a pair as the line leaves time for."""
        tuning = self._filling(costs, (1, 1))
        known = self._costs.get(tuning.codecs.activation, costs)
        most = known.free_steps(*self._bytes(tuning.codecs))
        return max(1, min(guest, most[0])), max(1, min(host, most[1]))

    def _note(self, outcome: Outcome, costs: Costs) -> Costs:
        """What is known after another segment; what coding costs is known for its codec alone."""
        costs = costs.learn(outcome)
        self._costs[outcome.segment.tuning.codecs.activation] = costs
        return costs

    def _filling(self, costs: Costs, R: Pair) -> Tuning:
        """The tuning that fills the line, with these R; what was written down wins."""
        R_by_role = {"guest": R[0], "host": R[1]}
        W_by_role = {role: min(MAX_W, max(_SMALLEST_W, r)) for role, r in R_by_role.items()}
        codecs = self._given.get("codec") or self._codecs_for(costs)
        known = self._costs.get(codecs.activation, costs)
        depth = known.depth(*self._bytes(codecs))
        tuning = {"W": W_by_role, "R": R_by_role, "depth": depth, "codec": codecs}
        return Tuning.model_validate({**tuning, **self._given})

    def _codecs_for(self, costs: Costs) -> Codecs:
        """The most exact codec with which a round takes hardly longer than with any."""
        times = {
            name: self._costs.get(name, costs).round_s(*self._bytes(_all(name))) for name in LADDER
        }
        fastest = min(times.values())
        name = next(name for name in LADDER if times[name] <= _WORTH * fastest)
        # Held-out rows decide trials and ends, and are few: they are not sent in the smallest.
        evaluation = name if name in ("fp32", "bf16") else "int8"
        return Codecs(activation=name, derivative=name, evaluation=evaluation)

    def _bytes(self, codecs: Codecs) -> tuple[int, int]:
        """Bytes of a round's messages each way, of the host that sends most."""
        width = max((terms.z_width for terms in self._job.hosts.values()), default=1)
        up, down = (
            find_codec(name, "codec").max_bytes(self._job.batch_size, width)
            for name in (codecs.activation, codecs.derivative)
        )
        return up, down

    def _step(self, start: int, stop: int, tuning: Tuning, reason: str) -> Stage:
        stop = min(stop, self._schedule.num_rounds)
        return Stage(Segment(start, stop, tuning, scored=False), reason=reason)

    def _why(self, costs: Costs, tuning: Tuning) -> str:
        up, down = self._bytes(tuning.codecs)
        plain = self._bytes(_all(LADDER[0]))
        return (
            f"a round's messages take {1000 * costs.line_s(*plain):.1f} ms on the line in float32, "
            f"{1000 * costs.line_s(up, down):.1f} ms in {tuning.codecs.activation}, a round trip "
            f"{1000 * costs.round_trip_s:.1f} ms, computing {1000 * costs.guest_s:.1f} ms at the "
            f"guest and {1000 * costs.host_s:.1f} ms at the hosts: {tuning.depth} in flight"
        )


def _all(codec: str) -> Codecs:
    return Codecs(activation=codec, derivative=codec, evaluation=codec)


def _fewer(pair: Pair, other: Pair) -> bool:
    """Whether no party makes more local steps by one than by the other."""
    return all(ours <= theirs for ours, theirs in zip(pair, other, strict=True))


def _beats(challenger: list[float], holder: list[float], *, clearly: bool) -> bool:
    """Whether one foretold better; clearly: by more than the mean difference's standard error."""
    by = [c - h for c, h in zip(challenger, holder, strict=True)]
    error = stdev(by) / math.sqrt(len(by)) if clearly and len(by) > 1 else 0.0
    return mean(by) > error
