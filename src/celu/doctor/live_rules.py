"""Advice about a run in progress: each rule checks one thing and says what to change.

Rules are pure functions of a `RunStatus`. They see the record of one party only; about its peers
they know what its links report.
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

_MIN_ROUNDS = 10  # before that, the shares of time mean little
_LONG_WAIT = 0.5  # share of the time spent waiting
_BUSY_LINK = 0.7  # share of the time in which a link is in use
_IDLE_LINK = 0.3
_SHORT_WAIT = 0.2  # share of the time spent waiting
_MIN_SILENCE_S = 30.0  # a shorter silence is not reported
_MISSED_REPORTS = 10  # usual intervals without an event that count as silence


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, `quiet_s` seconds after its last event."""

    record: RunRecord
    quiet_s: float
    latest: RecentRounds | None
    down: Mapping[str, Event]  # the event since which the link to a peer is down
    is_connected: bool  # the peers have connected in this attempt
    last_t: float  # of the last event, in seconds of the run

    @staticmethod
    def from_record(record: RunRecord, quiet_s: float = 0.0) -> RunStatus:
        """Read the status from a record."""
        down: dict[str, Event] = {}
        is_connected = True
        for event in record.events:
            peer = str(event.fields.get("peer")) if event.event in ("link_down", "link_up") else ""
            if event.event == "link_down":
                down[peer] = event
            elif event.event == "link_up":
                down.pop(peer, None)
            elif event.event in ("attempt", "restart"):
                down, is_connected = {}, False
            elif event.event == "connected" or isinstance(event, TrainingStarted):
                is_connected = True
        last_t = record.events[-1].t if record.events else 0.0
        return RunStatus(record, quiet_s, recent_rounds(record.rounds), down, is_connected, last_t)

    @property
    def is_running(self) -> bool:
        """Whether the record has not ended."""
        return self.record.status == "running"

    @property
    def peers(self) -> list[str]:
        """The parties that this one is linked to."""
        job = self.record.job
        guest = str(job.get("guest", "guest"))
        return [guest] if self.record.role == "host" else list(job.get("hosts", {}))

    @property
    def steady(self) -> RecentRounds | None:
        """The latest rounds, once the run has done a few."""
        latest = self.latest
        return latest if latest is not None and latest.rounds >= _MIN_ROUNDS else None

    @property
    def auto(self) -> bool:
        """Whether the run chooses depth and codec."""
        return bool(self.method.get("auto"))

    @property
    def method(self) -> Mapping[str, Any]:
        """The current settings of the method."""
        method = dict(self.record.job.get("method", {}))
        if self.record.choices:
            chosen = self.record.choices[-1]
            method |= {"depth": chosen.depth, "W": chosen.W, "R": chosen.R}
        return method

    def role_setting(self, name: str, default: float) -> float:
        """A setting of the method for this party's role."""
        value = self.method.get(name, default)
        return float(value.get(self.record.role, default) if isinstance(value, Mapping) else value)


def failure(run: RunStatus) -> Iterator[Finding]:
    """A run that ended with an error."""
    record = run.record
    if record.status in ("running", "done"):
        return
    message = (record.summary or {}).get("message")
    yield Finding(
        "end",
        "warn",
        f"ended with {record.status}" + (f": {message}" if message else ""),
        "Fix the cause, then run the same command again at the parties that stopped: the run "
        "resumes from its last checkpoint.",
    )


def outages(run: RunStatus) -> Iterator[Finding]:
    """A link that is down."""
    if not run.is_running:
        return
    outage_s = run.record.settings.get("party", {}).get("outage_s", 600.0)
    for peer, event in run.down.items():
        since = run.last_t + run.quiet_s - event.t
        yield Finding(
            f"link to {peer}",
            "warn",
            f"down for {seconds(since)}: {event.fields.get('reason', 'unknown reason')}",
            f"Check that celu runs at {peer}, and the network between you. The run continues by "
            f"itself when the link is up; after {seconds(float(outage_s))} (outage_s) it ends, and "
            "can be resumed later.",
        )


def missing_peers(run: RunStatus) -> Iterator[Finding]:
    """Peers that have not connected yet."""
    if not run.is_running or run.is_connected or run.quiet_s < _MIN_SILENCE_S:
        return
    yield Finding(
        "peers",
        "warn",
        f"{', '.join(run.peers)} not connected for {seconds(run.quiet_s)}: the run has not started",
        "Start celu run there too; the party that listens prints the command. If it runs, check "
        "addresses and firewalls.",
    )


def silence(run: RunStatus) -> Iterator[Finding]:
    """A process that may have died."""
    if not run.is_running or run.down or not run.is_connected:
        return
    record = run.record
    rounds = record.rounds[-_MISSED_REPORTS:]
    usual = (rounds[-1].t - rounds[0].t) / (len(rounds) - 1) if len(rounds) > 1 else 0.0
    if run.quiet_s < max(_MIN_SILENCE_S, _MISSED_REPORTS * usual):
        return
    rounds_saved = record.checkpoints
    where = f"round {rounds_saved[-1]:,}" if rounds_saved else "its last checkpoint, if it has one"
    yield Finding(
        "silence",
        "warn",
        f"no event for {seconds(run.quiet_s)}"
        + (f"; usually there is one every {seconds(usual)}" if usual else ""),
        "Check that the process is still alive. If not, run the same command again: it resumes "
        f"from {where}.",
    )


def waiting(run: RunStatus) -> Iterator[Finding]:
    """Computation that waits for messages much of the time."""
    latest = run.steady
    if latest is None or latest.waited < _LONG_WAIT:
        return
    full = max(latest.sending or 0.0, latest.receiving or 0.0) >= _BUSY_LINK
    if run.auto:
        fix = (
            'method = "auto" already uses the waiting time. The rest is due to the link or to a '
            "slower peer: look at the peer's report."
        )
    else:
        fewer = 'send fewer bytes (codec = "int8"), or ' if full else ""
        fix = (
            f"In job.toml, at all parties: {fewer}do more local steps (R = "
            f'{int(run.role_setting("R", 1))} here now), or set method = "auto". Or a peer is '
            "slower: look at its report."
        )
    yield Finding(
        "computing",
        "hint",
        f"idle {latest.waited:.0%} of the time, waiting for messages"
        + (", and the link is full" if full else ""),
        fix,
    )


def idle_link(run: RunStatus) -> Iterator[Finding]:
    """A link that is idle much of the time, and the reason."""
    latest = run.steady
    if latest is None or latest.sending is None or latest.receiving is None:
        return
    if max(latest.sending, latest.receiving) >= _IDLE_LINK:
        return
    message = f"in use {latest.sending:.0%} of the time to send, {latest.receiving:.0%} to receive"
    if latest.waited >= _LONG_WAIT:
        fix = (
            f"Use more rounds in flight: depth = {2 * int(run.method.get('depth', 1))} under "
            "[method] in job.toml, at all parties. celu doctor measures how many fill the link."
        )
        if run.auto:
            fix = "Look at the peer's report: both parties may be waiting for its computation."
        yield Finding("link", "hint", f"{message}, while this party waits", fix)
    elif latest.waited < _SHORT_WAIT:
        yield Finding(
            "link",
            "hint",
            f"{message}: computation limits the rounds",
            "The link is not the limit: a more precise codec costs no time here. Fewer local steps "
            "(R) or a faster device make rounds shorter.",
        )


def similarity(run: RunStatus) -> Iterator[Finding]:
    """Cached batches whose derivatives are too stale to be useful."""
    latest = run.steady
    if latest is None or latest.similarity is None:
        return
    if run.method.get("weighting", "cosine") != "cosine":
        return
    floor = math.cos(math.radians(run.role_setting("xi", 60.0)))
    if latest.similarity >= floor:
        return
    yield Finding(
        "similarity",
        "warn",
        f"the median cosine similarity is {latest.similarity:.2f}, below cos(xi) = {floor:.2f}: "
        "more than half of the cached rows have weight 0",
        "Use cached batches less: lower R or W under [method] in job.toml, at all parties. Or "
        "lower the learning rate: the models change a lot between rounds.",
    )


Rule = Callable[[RunStatus], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    failure,
    outages,
    missing_peers,
    silence,
    waiting,
    idle_link,
    similarity,
)


def warnings(run: RunStatus) -> list[Finding]:
    """All warnings and hints about a run, the most urgent first."""
    return [finding for rule in RULES for finding in rule(run)]
