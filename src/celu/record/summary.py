"""A run in a few figures, and its happenings in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celu.events import Evaluated, Event
from celu.models.losses import HIGHER_IS_BETTER
from celu.record.run import RunRecord


def figures(record: RunRecord) -> dict[str, Any]:
    """The end of a run, or how far it is; None where there is nothing to tell."""
    last = record.rounds[-1] if record.rounds else None
    scored = record.evaluations[-1] if record.evaluations else None
    latest = max((e for e in (scored, last) if e is not None), key=lambda e: e.t, default=None)
    best = _best(record)
    of = "" if record.num_rounds is None else f" of {record.num_rounds:,}"
    return {
        "party": f"{record.name} ({record.role})",
        "status": record.status,
        "rounds": None if last is None else f"{last.round:,}{of}",
        "seconds": None if latest is None else latest.seconds,
        "round_s": None if not last else last.seconds / last.round,
        "waited": None if not last or not last.seconds else last.waited_s / last.seconds,
        "evaluating_s": None if scored is None else scored.evaluating_s,
        "bytes_sent": None if latest is None else latest.bytes_sent,
        "bytes_received": None if latest is None else latest.bytes_received,
        "evaluation_bytes": None if latest is None else latest.evaluation_bytes,
        "local_steps": None if last is None else last.local_steps,
        "bubbles": None if last is None else last.bubbles,
        "metric": record.metric if scored else None,
        "best": None if best is None else best.metrics[record.metric],
        "best_round": None if best is None else best.round,
        "best_seconds": None if best is None else best.seconds,
        "final": None if scored is None else scored.metrics.get(record.metric),
        "attempts": record.attempts,
        "virtual": bool(record.settings.get("simulated", {}).get("link")),
    }


def _best(record: RunRecord) -> Evaluated | None:
    metric = record.metric
    having = [e for e in record.evaluations if metric in e.metrics]
    sign = 1 if HIGHER_IS_BETTER.get(metric, True) else -1
    return max(having, key=lambda e: sign * e.metrics[metric], default=None)


def in_words(event: Event) -> tuple[str, str] | None:
    """What an event is called and says, if it belongs into a report's list of happenings."""
    told = event.fields
    if event.event == "attempt" and told.get("number", 1) > 1:
        return "started again", f"attempt {told['number']}"
    if isinstance(event, Evaluated):
        return ("target", f"reached at round {event.round:,}") if event.target_reached else None
    found = _WORDS.get(event.event)
    return None if found is None else (found[0], found[1](told))


_WORDS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "resumed": ("goes on", lambda told: f"from round {told['round']:,} of {told['num_rounds']:,}"),
    "link_down": ("link down", lambda told: f"to {told.get('peer')}: {told.get('reason')}"),
    "link_up": ("link up", lambda told: f"to {told.get('peer')}, after {told.get('seconds')} s"),
    "restart": ("begins again", lambda told: str(told.get("message"))),
    "damaged": (
        "damaged",
        lambda told: f"the checkpoint of round {told.get('round')}: {told.get('why')}",
    ),
    "warning": ("warning", lambda told: str(told.get("message"))),
}
