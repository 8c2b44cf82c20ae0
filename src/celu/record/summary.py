"""A run as a few numbers, and its notable events as text."""

from __future__ import annotations

from typing import Any

from celu.events import (
    Attempt,
    Audited,
    CheckpointDamaged,
    Evaluated,
    Event,
    LinkDown,
    LinkUp,
    Protected,
    Restarted,
    TrainingResumed,
    TrainingStarted,
    Warned,
)
from celu.metrics.names import HIGHER_IS_BETTER, title_of
from celu.record.run import RunRecord


def summarize(record: RunRecord) -> dict[str, Any]:
    """A run's progress or result in numbers; None for what the run does not have yet."""
    last = record.rounds[-1] if record.rounds else None
    scored = record.evaluations[-1] if record.evaluations else None
    latest = max((e for e in (scored, last) if e is not None), key=lambda e: e.t, default=None)
    best, tested = _best(record), record.tested
    total = "" if record.num_rounds is None else f" of {record.num_rounds:,}"
    return {
        "party": f"{record.name} ({record.role})",
        "status": record.status,
        "rounds": None if last is None else f"{last.round:,}{total}",
        "seconds": None if latest is None else latest.seconds,
        "round_s": None if not last or not last.round else last.seconds / last.round,
        "waiting_share": None if not last or not last.seconds else last.waited_s / last.seconds,
        "evaluating_s": None if scored is None else scored.evaluating_s,
        "bytes_sent": None if latest is None else latest.bytes_sent,
        "bytes_received": None if latest is None else latest.bytes_received,
        "evaluation_bytes": None if latest is None else latest.evaluation_bytes,
        "local_steps": None if last is None else last.local_steps,
        "bubbles": None if last is None else last.bubbles,
        "metric": record.metric if scored else None,
        "titles": {} if scored is None else {name: title_of(name) for name in scored.metrics},
        "lower_is_better": lower_is_better(record),
        "best": None if best is None else best.metrics[record.metric],
        "best_round": None if best is None else best.round,
        "best_seconds": None if best is None else best.seconds,
        "final": None if scored is None else scored.metrics.get(record.metric),
        "test": None if tested is None else tested.metrics.get(record.metric),
        "test_round": None if tested is None else tested.round,
        "attempts": record.attempts,
        "virtual_time": bool(record.settings.get("simulated", {}).get("link")),
    }


def lower_is_better(record: RunRecord) -> list[str]:
    """The metrics for which lower is better: built-in ones, and those of the user's own."""
    starts = record.of_type(TrainingStarted)
    own = starts[-1].lower_is_better if starts else []
    return [name for name, is_higher in HIGHER_IS_BETTER.items() if not is_higher] + own


def _best(record: RunRecord) -> Evaluated | None:
    metric = record.metric
    scored = [e for e in record.evaluations if metric in e.metrics]
    sign = -1 if metric in lower_is_better(record) else 1
    return max(scored, key=lambda e: sign * e.metrics[metric], default=None)


def describe_event(event: Event) -> tuple[str, str] | None:
    """A title and a detail for an event log; None for an event that is not notable."""
    text: tuple[str, str] | None = None
    match event:
        case Attempt() if event.number > 1:
            text = "restarted", f"attempt {event.number}"
        case TrainingResumed():
            text = "resumed", f"from round {event.round:,} of {event.num_rounds:,}"
        case LinkDown():
            text = "link down", f"to {event.peer}: {event.reason}"
        case LinkUp():
            text = "link up", f"to {event.peer}, after {event.seconds} s"
        case Restarted():
            text = "starting over", event.message
        case CheckpointDamaged():
            text = "checkpoint damaged", f"round {event.round}: {event.why}"
        case Evaluated() if event.target_reached:
            text = "target reached", f"at round {event.round:,}"
        case Protected():
            text = "defence", event.promise
        case Audited():
            text = "audited", f"{event.rows:,} rows in {event.seconds:.1f} s"
        case Warned():
            text = "warning", event.message
    return text
