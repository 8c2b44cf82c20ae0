"""Advice about a run that is going on: each rule looks at one thing and says what to change.

Rules are pure functions of an `RunStatus`, as those about a link are of a `LinkFacts`. They see what one
party recorded, so that of its peers they know what its links know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from celu.doctor.facts import Finding, seconds
from celu.events import Event, TrainingStarted
from celu.record.recent import RecentRounds, recent_rounds
from celu.record.run import RunRecord

_SETTLED = 10  # rounds before which shares say little
_MUCH = 0.5  # of the time, spent waiting
_FULL = 0.7  # of the time, a link in use
_IDLE = 0.3
_LITTLE = 0.2  # of the time, spent waiting
_PATIENCE_S = 30.0  # of a reader who sees nothing happen
_REPORTS = 10  # so many times as long as between two of them is a silence


@dataclass(frozen=True)
class RunStatus:
    """A run as it is now; `quiet_s` have passed since it last wrote anything."""

    record: RunRecord
    quiet_s: float
    latest: RecentRounds | None
    down: Mapping[str, Event]  # links, by their peers, since when
    is_met: bool  # this attempt's peers have come
    last_t: float  # when it last wrote, in seconds of the run

    @staticmethod
    def of(record: RunRecord, quiet_s: float = 0.0) -> RunStatus:
        """What a record says."""
        down: dict[str, Event] = {}
        is_met = True
        for event in record.events:
            peer = str(event.fields.get("peer")) if event.event in ("link_down", "link_up") else ""
            if event.event == "link_down":
                down[peer] = event
            elif event.event == "link_up":
                down.pop(peer, None)
            elif event.event in ("attempt", "restart"):
                down, is_met = {}, False
            elif event.event == "connected" or isinstance(event, TrainingStarted):
                is_met = True
        last_t = record.events[-1].t if record.events else 0.0
        return RunStatus(record, quiet_s, recent_rounds(record.rounds), down, is_met, last_t)

    @property
    def is_running(self) -> bool:
        """As far as the folder says."""
        return self.record.status == "running"

    @property
    def peers(self) -> list[str]:
        """The parties that this one has links to."""
        job = self.record.job
        guest = str(job.get("guest", "guest"))
        return [guest] if self.record.role == "host" else list(job.get("hosts", {}))

    @property
    def settled(self) -> RecentRounds | None:
        """The latest rounds of a run that is past its beginning."""
        late = self.latest
        return late if late is not None and late.rounds >= _SETTLED else None

    @property
    def auto(self) -> bool:
        """The contract leaves depth and codec to the run."""
        return bool(self.method.get("auto"))

    @property
    def method(self) -> Mapping[str, Any]:
        """The algorithm, as it is now."""
        method = dict(self.record.job.get("method", {}))
        if self.record.choices:
            chosen = self.record.choices[-1]
            method |= {"depth": chosen.depth, "W": chosen.W, "R": chosen.R}
        return method

    def of_role(self, name: str, default: float) -> float:
        """What the method says for this party's role."""
        value = self.method.get(name, default)
        return float(value.get(self.record.role, default) if isinstance(value, Mapping) else value)


def ending(run: RunStatus) -> Iterator[Finding]:
    """A run that ended with an error."""
    record = run.record
    if record.status in ("running", "done"):
        return
    message = (record.summary or {}).get("message")
    yield Finding(
        "end",
        "warn",
        f"ended with {record.status}" + (f": {message}" if message else ""),
        "See to what it names, then run the same line again at the parties that stopped: the run "
        "goes on from its last checkpoint.",
    )


def outages(run: RunStatus) -> Iterator[Finding]:
    """A peer that is silent, or cannot be reached."""
    if not run.is_running:
        return
    outage_s = run.record.settings.get("party", {}).get("outage_s", 600.0)
    for peer, event in run.down.items():
        since = run.last_t + run.quiet_s - event.t
        yield Finding(
            f"link to {peer}",
            "warn",
            f"down for {seconds(since)}: {event.fields.get('reason', 'no reason told')}",
            f"Look whether celu runs at {peer}, and at the network in between. The run goes on by "
            f"itself when the link is up; after {seconds(float(outage_s))} (outage_s) it ends, and "
            "can go on later.",
        )


def meeting(run: RunStatus) -> Iterator[Finding]:
    """Peers that have not come yet."""
    if not run.is_running or run.is_met or run.quiet_s < _PATIENCE_S:
        return
    yield Finding(
        "peers",
        "warn",
        f"no word from {', '.join(run.peers)} for {seconds(run.quiet_s)}: the run has not begun",
        "Start celu run there too; the terminal of the party that listens shows the line. Then "
        "look at addresses and firewalls.",
    )


def silence(run: RunStatus) -> Iterator[Finding]:
    """A process that may be gone."""
    if not run.is_running or run.down or not run.is_met:
        return
    record = run.record
    rounds = record.rounds[-_REPORTS:]
    usual = (rounds[-1].t - rounds[0].t) / (len(rounds) - 1) if len(rounds) > 1 else 0.0
    if run.quiet_s < max(_PATIENCE_S, _REPORTS * usual):
        return
    kept = record.checkpoints
    since = f" from round {kept[-1]:,}" if kept else " from its last checkpoint, if it has one"
    yield Finding(
        "silence",
        "warn",
        f"nothing was recorded for {seconds(run.quiet_s)}"
        + (f", where a report comes every {seconds(usual)}" if usual else ""),
        f"Look whether the process is still there. If not, run the same line again: it goes on"
        f"{since}.",
    )


def waiting(run: RunStatus) -> Iterator[Finding]:
    """Computing that idles."""
    late = run.settled
    if late is None or late.waited < _MUCH:
        return
    full = max(late.sending or 0.0, late.receiving or 0.0) >= _FULL
    if run.auto:
        change = (
            'method = "auto" fills the wait as far as that pays. What is left is the line, or a '
            "peer that computes for longer: look at its page."
        )
    else:
        fewer = 'send fewer bytes (codec = "int8"), or ' if full else ""
        change = (
            f"In job.toml, at all parties: {fewer}let local steps use the wait (R = "
            f'{int(run.of_role("R", 1))} here now), or choose method = "auto". Or a peer is '
            "slower: look at its page."
        )
    yield Finding(
        "computing",
        "warn",
        f"idle {late.waited:.0%} of the time, waiting for messages"
        + (", and the link is full" if full else ""),
        change,
    )


def idle_link(run: RunStatus) -> Iterator[Finding]:
    """A link that idles, where that is for one reason."""
    late = run.settled
    if late is None or late.sending is None or late.receiving is None:
        return
    if max(late.sending, late.receiving) >= _IDLE:
        return
    words = f"in use {late.sending:.0%} of the time to send, {late.receiving:.0%} to receive"
    if late.waited >= _MUCH:
        change = (
            f"Keep more rounds in flight: depth = {2 * int(run.method.get('depth', 1))} under "
            "[method] in job.toml, at all parties. celu doctor tells how many fill this line."
        )
        if run.auto:
            change = "Look at the peer's page: it may be what both wait for."
        yield Finding("link", "warn", f"{words}, while this party waits", change)
    elif late.waited < _LITTLE:
        yield Finding(
            "link",
            "warn",
            f"{words}: computing is what a round takes",
            "The line is not the limit: a more exact codec costs nothing here. Fewer local steps "
            "(R), or a faster device, make rounds shorter.",
        )


def similarity(run: RunStatus) -> Iterator[Finding]:
    """Cached batches that are too far off to be of use."""
    late = run.settled
    if late is None or late.similarity is None:
        return
    if run.method.get("weighting", "cosine") != "cosine":
        return
    floor = math.cos(math.radians(run.of_role("xi", 60.0)))
    if late.similarity >= floor:
        return
    yield Finding(
        "similarity",
        "warn",
        f"the median is {late.similarity:.2f}, below cos(xi) = {floor:.2f}: more than half of the "
        "rows of cached batches count for nothing",
        "Use batches less often, or for less long: lower R or W under [method] in job.toml, at "
        "all parties. Or lower the learning rate: the models move far between rounds.",
    )


Rule = Callable[[RunStatus], Iterator[Finding]]
RULES: tuple[Rule, ...] = (ending, outages, meeting, silence, waiting, idle_link, similarity)


def warnings(run: RunStatus) -> list[Finding]:
    """All that is amiss, the most pressing first; nothing where all is well."""
    return [finding for rule in RULES for finding in rule(run)]
