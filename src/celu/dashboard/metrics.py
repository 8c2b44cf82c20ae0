"""Runs as Prometheus reads them: its text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from celu.dashboard.live import LiveRun
from celu.doctor.live_rules import RunStatus

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Sample = tuple[str, str, float | None]  # the name, more labels, the value
_METRICS = {
    "celu_running": ("gauge", "Whether the run has no end yet."),
    "celu_round": ("gauge", "Rounds that are done."),
    "celu_rounds": ("gauge", "Rounds that the run has in all."),
    "celu_training_seconds": ("gauge", "Seconds of training until the last report."),
    "celu_waited_seconds": ("gauge", "Of these, seconds spent waiting for messages."),
    "celu_sent_bytes": ("gauge", "Bytes sent in training."),
    "celu_received_bytes": ("gauge", "Bytes received in training."),
    "celu_local_steps": ("gauge", "Local steps that were made."),
    "celu_link_up": ("gauge", "Whether the link to a peer is up."),
    "celu_metric": ("gauge", "The last evaluation of held-out rows."),
}


def metrics_text(runs: Sequence[LiveRun]) -> str:
    """All runs in one answer. Counts are gauges: a run that goes on may take some back."""
    found: dict[str, list[str]] = {name: [] for name in _METRICS}
    for run in runs:
        own = {"run": run.label, "party": run.record.name}
        for name, more, value in _samples(run):
            if value is not None:
                found[name].append(f"{name}{{{_labels(own)}{more}}} {float(value)!r}")
    lines = []
    for name, (kind, words) in _METRICS.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *found[name]]
    return "\n".join(lines) + "\n"


def _samples(run: LiveRun) -> Iterator[_Sample]:
    record = run.record
    yield "celu_running", "", float(record.status == "running")
    yield "celu_rounds", "", record.num_rounds
    rounds, evaluations = record.rounds, record.evaluations
    if rounds:
        last = rounds[-1]
        yield "celu_round", "", last.round
        yield "celu_training_seconds", "", last.seconds
        yield "celu_waited_seconds", "", last.waited_s
        yield "celu_sent_bytes", "", last.bytes_sent
        yield "celu_received_bytes", "", last.bytes_received
        yield "celu_local_steps", "", last.local_steps
    underway = RunStatus.from_record(record)
    for peer in underway.peers if underway.is_running else ():
        up = underway.is_connected and peer not in underway.down
        yield "celu_link_up", "," + _labels({"peer": peer}), float(up)
    for name, value in (evaluations[-1].metrics if evaluations else {}).items():
        yield "celu_metric", "," + _labels({"name": name}), value


def _labels(values: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
