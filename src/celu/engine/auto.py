"""Choosing while training: how to fill the line, and which party's local steps pay.

First the line. Some rounds, one at a time, show what a byte, a round trip, a round's computing and
a local step cost. From these follow the most exact codec that does not hold up the computing, the
depth at which the line never idles, and how many local steps fit into the time that it leaves.

Then the local steps. Whether they pay cannot be read off a single one: a step that makes the loss
of the next batch worse may well be one that makes the model better fifty rounds on. So it is tried
out. From one state, each of a few pairs (R of the guest, R of the hosts) trains for some rounds on
the same batches; the best goes on from where it came, and the others are as if they had never been.
The best is the one that foretells best what it has not seen: in the first epoch the fresh batches
of the trial's second half, before it learns from them, which costs nothing; later, when every row
has been seen, the held-out rows. Where steps pay, twice as many are tried at once. That is done
early, and again when training has become many times as long or rows begin to be seen again, with
more and with fewer steps than hold: what paid at first may overfit later.

A choice is a function of outcomes alone, so a run that records its choices can be repeated by them.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from statistics import mean

from celu.codecs.named import find_codec
from celu.config.job import Choice, Job, Tuning
from celu.engine.plan import MARKS, MOST_DEPTH, MOST_R, MOST_W, Outcome, Step, first_step
from celu.engine.schedule import Schedule, Segment

# From exact to small. Below four bits, convergence suffers.
LADDER = ("fp32", "bf16", "int8", "4bit")
# A codec is worth its errors only where it saves more than this share of a round's time.
_WORTH = 1.1
_FILL_ROUNDS = 10
_FIRST_PAIRS = ((5, 1), (1, 3), (3, 3))
_SMALLEST_W = 5
_AGAIN = (4, 16)  # try again when training is so many times as long: at least, at most
_TRIAL_ROUNDS = (32, 64)  # of the first trial: at least, at most

Pair = tuple[int, int]  # R of the guest, R of the hosts
_Course = Generator[Step, Outcome, None]


@dataclass(frozen=True)
class Costs:
    """What things cost, in seconds: as last measured."""

    up_byte_s: float  # on the line, to the guest
    down_byte_s: float
    round_trip_s: float
    guest_s: float  # a round's exchange, without local steps
    host_s: float
    guest_step_s: float
    host_step_s: float

    @staticmethod
    def of(outcome: Outcome, up: int, down: int) -> Costs:
        """From a segment of one round at a time, with messages of so many bytes each way."""
        guest, hosts = outcome.guest, outcome.hosts
        costs = Costs(
            guest.byte_s,
            max((h.byte_s for h in hosts), default=0.0),
            0.0,
            guest.exchange_s,
            max((h.exchange_s for h in hosts), default=0.0),
            guest.step_s,
            max((h.step_s for h in hosts), default=0.0),
        )
        waited_s = guest.waited_s / guest.rounds
        on_the_line_s = up * costs.up_byte_s + down * costs.down_byte_s
        return replace(costs, round_trip_s=max(0.0, waited_s - on_the_line_s - costs.host_s))

    def learn(self, outcome: Outcome) -> Costs:
        """The same after another segment; what it did not measure, or hardly, stays."""
        guest, hosts = outcome.guest, outcome.hosts
        if guest.rounds < _FILL_ROUNDS // 3:
            return self
        slowest = max(hosts, key=lambda h: h.exchange_s, default=None)
        return replace(
            self,
            guest_s=guest.exchange_s,
            guest_step_s=guest.step_s if guest.local_steps else self.guest_step_s,
            host_s=slowest.exchange_s if slowest else 0.0,
            host_step_s=(slowest.step_s if slowest and slowest.local_steps else self.host_step_s),
        )

    def line_s(self, up: int, down: int) -> float:
        """How long a round's messages hold the line, in the slower direction."""
        return max(up * self.up_byte_s, down * self.down_byte_s)

    def round_s(self, up: int, down: int) -> float:
        """How long a round takes where enough are in flight."""
        return max(self.line_s(up, down), self.guest_s, self.host_s)

    def depth(self, up: int, down: int) -> int:
        """How many rounds in flight that takes."""
        round_s = self.round_s(up, down)
        latency_s = self.round_trip_s + up * self.up_byte_s + down * self.down_byte_s + self.host_s
        return min(MOST_DEPTH, max(1, math.ceil((latency_s + round_s) / max(round_s, 1e-9))))

    def free_steps(self, up: int, down: int) -> tuple[int, int]:
        """R of the guest and of the hosts for which local steps take no time from a round."""
        spare_s = self.round_s(up, down)
        guest = 1 + int((spare_s - self.guest_s) / max(self.guest_step_s, 1e-9))
        host = 1 + int((spare_s - self.host_s) / max(self.host_step_s, 1e-9))
        return min(guest, MOST_R), min(host, MOST_R)


class AutoPlan:
    """See `Plan`."""

    chooses = True

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._job = job
        self._schedule = schedule
        self._given = {n: v for n, v in dict(job.tuning()).items() if n in job.given()}
        self._costs: dict[str, Costs] = {}  # by the codec with which they were measured
        self._course = self._run()
        self._goal: Segment  # of the step at hand, which an evaluation may interrupt
        self._fresh: list[float] = []
        self._marks: dict[str, list[Choice]] = {}
        self.choices: list[Choice] = []

    def first(self) -> Step:
        """See `Plan`."""
        return self._take(next(self._course))

    def after(self, outcome: Outcome) -> Step | None:
        """See `Plan`."""
        done = outcome.segment
        self._fresh += outcome.fresh
        if done.stop < self._goal.stop:  # an evaluation of the contract's came in between
            return Step(self._cut(replace(self._goal, start=done.stop)), reason="as before")
        try:
            return self._take(self._course.send(replace(outcome, fresh=self._fresh)))
        except StopIteration:
            return None

    def _take(self, step: Step) -> Step:
        """Record a step, and cut it at the contract's next evaluation."""
        if step.save:
            self._marks[step.save] = list(self.choices)
        if step.restore:
            self.choices = list(self._marks[step.restore])
        self._goal, self._fresh = step.segment, []
        tuning = dict(step.segment.tuning)
        self.choices.append(Choice(round=step.segment.start, reason=step.reason, **tuning))
        return replace(step, segment=self._cut(step.segment))

    def _cut(self, segment: Segment) -> Segment:
        """As much of a segment as there is before the contract's next evaluation."""
        evaluation = self._schedule.evaluation_after(segment.start)
        if segment.stop < evaluation:
            return segment
        return replace(segment, stop=evaluation, scored=True)

    def _run(self) -> _Course:
        outcome = yield replace(
            first_step(self._job, self._schedule), reason="one round at a time, to measure"
        )
        costs = Costs.of(outcome, *self._bytes(outcome.segment.tuning))
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
        R: Pair = (1, 1)
        held: str | None = None
        rounds = max(_TRIAL_ROUNDS[0], min(_TRIAL_ROUNDS[1], end // 25))
        reason = "the line is full"
        while here < end:
            trial = max(rounds, here // 8)
            pairs = self._pairs(costs, R)
            while len(pairs) > 1 and here + trial < end:
                before = R
                R, held, reason = yield from self._trial(here, trial, pairs, costs, held, reason)
                here += trial
                # What paid may pay more.
                pairs = [self._more(costs, R), R] if before < R else []
                pairs = list(dict.fromkeys(pairs))
            step = self._step(here, self._next_trial(here), self._filling(costs, R), reason)
            outcome = yield replace(step, restore=held, forget=True)
            here, costs, held = outcome.segment.stop, self._note(outcome, costs), None
            reason = "as before"

    def _trial(
        self,
        start: int,
        rounds: int,
        pairs: list[Pair],
        costs: Costs,
        held: str | None,
        before: str,
    ) -> Generator[Step, Outcome, tuple[Pair, str | None, str]]:
        """Have each pair train from the same state: the one at the mark `held`, or as it is.

        The best; the mark at which its state is held, None if it is the state as it is; and why.
        """
        scores: dict[Pair, float] = {}
        base = held or MARKS[0]
        best_at = next(mark for mark in MARKS if mark != base)
        save, restore = (None, base) if held else (base, None)
        for pair in pairs:
            why = f"{before}; trial of R {pair[0]} at the guest and {pair[1]} at the hosts"
            step = self._step(start, start + rounds, self._filling(costs, pair), why)
            unseen = start + rounds <= self._schedule.rounds_per_epoch
            segment = replace(step.segment, judged=unseen, scored=not unseen)
            outcome = yield replace(step, segment=segment, save=save, restore=restore)
            if unseen:
                scores[pair] = mean(outcome.fresh[rounds // 2 :])
            else:
                assert outcome.held_out is not None
                scores[pair] = outcome.held_out
            restore = base
            save = best_at if scores[pair] == max(scores.values()) else None
        best = max(scores, key=scores.__getitem__)
        shown = ", ".join(f"{g} and {h}: {abs(s):.4f}" for (g, h), s in scores.items())
        reason = f"R {best[0]} and {best[1]} did best in {rounds} rounds ({shown})"
        return best, None if best == pairs[-1] else best_at, reason

    def _pairs(self, costs: Costs, now: Pair) -> list[Pair]:
        """The R of guest and hosts to be tried; the one that holds comes last."""
        if "R" in self._given:
            return []
        if now == (1, 1):
            pairs = [self._within(costs, *pair) for pair in _FIRST_PAIRS]
        else:
            guest, host = now
            (some, _), (_, some_at_hosts) = _FIRST_PAIRS[:2]
            others = (
                (guest // 2, host // 2),
                (guest, 1 if host > 1 else some_at_hosts),
                (1 if guest > 1 else some, host),
            )
            pairs = [self._more(costs, now), *(self._within(costs, *pair) for pair in others)]
        return [*dict.fromkeys(pair for pair in pairs if pair != now), now]

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
        most = known.free_steps(*self._bytes(tuning))
        return max(1, min(guest, most[0])), max(1, min(host, most[1]))

    def _note(self, outcome: Outcome, costs: Costs) -> Costs:
        """What is known after another segment; what coding costs is known for its codec alone."""
        costs = costs.learn(outcome)
        self._costs[outcome.segment.tuning.codecs.activation] = costs
        return costs

    def _filling(self, costs: Costs, R: Pair) -> Tuning:
        """The tuning that fills the line, with these R; what was written down wins."""
        R_by_role = {"guest": R[0], "host": R[1]}
        W_by_role = {role: min(MOST_W, max(_SMALLEST_W, r)) for role, r in R_by_role.items()}
        known = {name: self._costs.get(name, costs) for name in LADDER}
        times = {name: known[name].round_s(*self._codec_bytes(name)) for name in LADDER}
        fastest = min(times.values())
        codec = next(name for name in LADDER if times[name] <= _WORTH * fastest)
        exact_test = codec if codec in ("fp32", "bf16") else "int8"
        codecs = {"activation": codec, "derivative": codec, "evaluation": exact_test}
        tuning = {
            "W": W_by_role,
            "R": R_by_role,
            "depth": known[codec].depth(*self._codec_bytes(codec)),
            "codec": codecs,
        }
        return Tuning.model_validate({**tuning, **self._given})

    def _codec_bytes(self, codec: str) -> tuple[int, int]:
        """Bytes of a round's messages each way with one codec, of the host that sends most."""
        return self._bytes(Tuning(W=1, R=1, depth=1, codec=codec))

    def _bytes(self, tuning: Tuning) -> tuple[int, int]:
        codecs = tuning.codecs
        width = max((terms.z_width for terms in self._job.hosts.values()), default=1)
        up, down = (
            find_codec(name, "codec").max_bytes(self._job.batch_size, width)
            for name in (codecs.activation, codecs.derivative)
        )
        return up, down

    def _step(self, start: int, stop: int, tuning: Tuning, reason: str) -> Step:
        stop = min(stop, self._schedule.num_rounds)
        return Step(Segment(start, stop, tuning, scored=False), reason=reason)

    def _why(self, costs: Costs, tuning: Tuning) -> str:
        up, down = self._bytes(tuning)
        plain = self._codec_bytes(LADDER[0])
        return (
            f"a round's messages take {1000 * costs.line_s(*plain):.1f} ms on the line in float32, "
            f"{1000 * costs.line_s(up, down):.1f} ms in {tuning.codecs.activation}, a round trip "
            f"{1000 * costs.round_trip_s:.1f} ms, computing {1000 * costs.guest_s:.1f} ms at the "
            f"guest and {1000 * costs.host_s:.1f} ms at the hosts: {tuning.depth} in flight"
        )
