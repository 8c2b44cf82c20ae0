"""Kill parties at seeded random points, restart them, and check that the run ends the same.

A point is a time since the last start or an event: a round, the handshake, a checkpoint being
written, the goodbye. Victims are the guest, the host, or both.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from celu.checkpoint.generations import FOLDER

from .parties import GUEST, HOSTS, ROUNDS, TIMEOUT_S, Environment, Federation, Party

VICTIMS = {"guest": [GUEST], "host": [HOSTS[0]], "both": [GUEST, HOSTS[0]]}
KILLS_PER_RUN = 8
_PEER_ENDS_S = 2.0  # after a party is done; a peer that runs longer waits for it


@dataclass
class Report:
    """The kills in all runs, each of which ended with the same bits."""

    runs: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)  # by victim
    points: Counter[str] = field(default_factory=Counter)
    restarts: int = 0  # of parties that were not killed
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        """The report as text."""
        carriers = ", ".join(f"{count} over {name}" for name, count in sorted(self.runs.items()))
        yield (
            f"{self.kills.total()} kills in {self.runs.total()} runs ({carriers}), "
            f"{self.seconds:.0f} s; each ended with the bits of a run without faults"
        )
        yield "  victims: " + ", ".join(f"{n} {self.kills[n]}" for n in VICTIMS)
        yield "  points: " + ", ".join(f"{n} {c}" for n, c in self.points.most_common())
        yield f"  the parties that were not killed restarted by themselves {self.restarts} times"


# Returns the name of the point once it is reached, and None before.
Point = Callable[[], str | None]


def at_any_time(victim: Party, rng: Random) -> Point:
    """A random time from now: in the handshake, in training or at the end."""
    due = time.monotonic() + rng.uniform(0.0, 1.5)
    return lambda: "any time" if time.monotonic() >= due else None


def at_a_round(victim: Party, rng: Random) -> Point:
    """A random number of rounds after the party started or resumed."""
    rounds = rng.randrange(1, 60)
    return lambda: "round" if num_rounds(victim) >= rounds else None


def in_the_handshake(victim: Party, rng: Random) -> Point:
    """During the startup or the handshake; a later round if that was missed."""
    last = rng.choice(["attempt", "data", "connected"])

    def is_there() -> str | None:
        events = victim.latest()
        if events and events[-1]["event"] in (last, "restart"):
            return "handshake"
        return "round" if num_rounds(victim) >= 30 else None

    return is_there


def in_a_checkpoint(victim: Party, rng: Random) -> Point:
    """A checkpoint of the current process is being written."""
    folder = victim.run / FOLDER
    return lambda: "checkpoint" if num_rounds(victim) and any(folder.glob(".round-*")) else None


def at_goodbye(victim: Party, rng: Random) -> Point:
    """All rounds are done."""
    return lambda: "goodbye" if victim.has_done(ROUNDS) else None


POINTS = [at_any_time, at_a_round, in_the_handshake, in_a_checkpoint]


def num_rounds(party: Party) -> int:
    """How many rounds the current process has done since it last started or resumed."""
    count = 0
    for event in reversed(party.latest()):
        if event["event"] in ("started", "resumed", "restart"):
            break
        count += event["event"] == "round"
    return count


def kill_many(
    environment: Environment,
    folder: Path,
    baseline: Federation,
    *,
    kills: int,
    seed: int,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Run until there were this many kills; AssertionError for a run that ends with other bits."""
    report, rng, began = Report(), Random(seed), time.monotonic()
    while report.kills.total() < kills:
        number = report.runs.total()
        carrier = "websocket" if number % 4 == 1 else "grpc"
        federation = environment.federation(folder / f"{number}", carrier=carrier)
        max_kills = min(KILLS_PER_RUN, kills - report.kills.total())
        try:
            _run_with_kills(federation, rng, max_kills, report)
            federation.assert_same_bits(baseline)
        except AssertionError as error:
            raise AssertionError(f"run {number} of seed {seed}, over {carrier}: {error}") from error
        finally:
            federation.stop()
        report.runs[carrier] += 1
        report.restarts += sum(len(p.events("restart")) for p in federation.parties.values())
        report.seconds = time.monotonic() - began
        on_progress(f"{report.kills.total()} kills, {report.seconds:.0f} s")
    return report


def _run_with_kills(federation: Federation, rng: Random, max_kills: int, report: Report) -> None:
    """One run to its end, with up to `max_kills` kills, the last one at the goodbye."""
    federation.start()
    for number in range(max_kills):
        victims = rng.choice(list(VICTIMS))
        watched = federation.parties[rng.choice(VICTIMS[victims])]
        choose = at_goodbye if number == max_kills - 1 else rng.choice(POINTS)
        point = _wait_for(federation, choose(watched, rng))
        killed = [name for name in VICTIMS[victims] if federation.parties[name].kill()]
        if killed and point:
            report.kills["both" if len(killed) > 1 else killed[0]] += 1
            report.points[point] += 1
        _start_again(federation)
    _wait_for(federation, lambda: None)


def _wait_for(federation: Federation, reached: Point) -> str | None:
    """Wait for a point; None if the run has ended at all parties."""
    give_up = time.monotonic() + TIMEOUT_S
    while not (point := reached()):
        _start_again(federation)
        if not any(party.is_running for party in federation.parties.values()):
            return None
        assert time.monotonic() < give_up, "\n".join(
            f"--- {party.name} {party.codes}\n{party.output_with_stacks()[-4000:]}"
            for party in federation.parties.values()
        )
        time.sleep(0.002)
    return point


def _start_again(federation: Federation) -> None:
    """Restart killed parties, and finished parties that another party waits for."""
    parties = federation.parties.values()
    for party in parties:
        if party.is_running:
            continue
        code = party.codes[-1] if party.codes else None
        assert code in (None, 0, -9), f"{party.name} ended with {code}\n{party.output()[-4000:]}"
        is_late = time.monotonic() - party.ended_at > _PEER_ENDS_S
        if code != 0 or (is_late and any(map(_waits_for_peer, parties))):
            party.start()


def _waits_for_peer(party: Party) -> bool:
    """Whether a party runs without a connection to its peer."""
    kinds = ("attempt", "restart", "connected", "link_down", "link_up")
    states = [event["event"] for event in party.latest() if event["event"] in kinds]
    return party.is_running and states[-1:] not in (["connected"], ["link_up"])
