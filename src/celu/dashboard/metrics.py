"""Metrics of runs in the Prometheus text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from celu.dashboard.live import LiveRun
from celu.doctor.live_rules import RunStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Sample = tuple[str, str, float | None]  # metric name, extra labels, value
_METRICS = {
    "celu_running": ("gauge", "1 while the run has not ended."),
    "celu_round": ("gauge", "Number of rounds done."),
    "celu_rounds": ("gauge", "Total number of rounds of the run."),
    "celu_training_seconds": ("gauge", "Training time in seconds, as of the last round event."),
    "celu_waited_seconds": ("gauge", "Training time spent waiting for messages, in seconds."),
    "celu_sent_bytes": ("gauge", "Bytes sent in training."),
    "celu_received_bytes": ("gauge", "Bytes received in training."),
    "celu_local_steps": ("gauge", "Number of local steps done."),
    "celu_link_up": ("gauge", "1 while the link to a peer is up."),
    "celu_metric": ("gauge", "Metric of the last evaluation on held-out rows."),
    "celu_test_metric": ("gauge", "Metric of the test rows with the best weights."),
}


def metrics_text(runs: Sequence[LiveRun]) -> str:
    """All runs in one response. Counts are gauges: a resumed run starts from a lower count."""
    found: dict[str, list[str]] = {name: [] for name in _METRICS}
    for run in runs:
        own_labels = {"run": run.label, "party": run.record.name}
        for name, extra, value in _samples(run):
            if value is not None:
                found[name].append(f"{name}{{{_labels(own_labels)}{extra}}} {float(value)!r}")
    lines = []
    for name, (kind, help_text) in _METRICS.items():
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *found[name]]
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
    status = RunStatus.from_record(record)
    for peer in status.peers if status.is_running else ():
        up = status.is_connected and peer not in status.down
        yield "celu_link_up", "," + _labels({"peer": peer}), float(up)
    for name, value in (evaluations[-1].metrics if evaluations else {}).items():
        yield "celu_metric", "," + _labels({"name": name}), value
    for name, value in ({} if record.tested is None else record.tested.metrics).items():
        yield "celu_test_metric", "," + _labels({"name": name}), value


def _labels(values: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
