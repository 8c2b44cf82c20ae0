"""What a report shows, as JSON: lines, figures, tables. How it looks is up to `report.js`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celu.errors import ConfigError
from celu.record.happened import Evaluated
from celu.record.run import RunRecord
from celu.report.clocks import apart_s
from celu.report.figures import figures, in_words
from celu.report.lines import line, similarity, use
from celu.report.windows import PLACES, groups, spans_in, window_at


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs of these folders; raises ConfigError, also for a folder that is named twice."""
    seen: dict[Path, Path] = {}
    for path in paths:
        where = path.resolve()
        if where in seen:
            raise ConfigError(f"{path}: expected each run folder once, got it as {seen[where]} too")
        seen[where] = path
    return [RunRecord(path) for path in paths]


def content(records: Sequence[RunRecord]) -> dict[str, Any]:
    """All that a report of these runs shows."""
    labels = _labels(records)
    return {
        "runs": [_run(record, label) for record, label in zip(records, labels, strict=True)],
        "windows": _windows(records),
        "settings": _side_by_side(records, [_flat(_settings(record)) for record in records]),
        "versions": _side_by_side(records, [_flat(record.versions) for record in records]),
    }


def _run(record: RunRecord, label: str) -> dict[str, Any]:
    rounds, evaluations = record.rounds, record.evaluations
    metrics = {name: None for event in evaluations for name in event.metrics}
    return {
        "label": label,
        "figures": figures(record),
        "held_out": {name: line(evaluations, _metric(name)) for name in metrics},
        "loss": line(rounds, lambda event: event.loss),
        "staleness": line(rounds, lambda event: event.staleness),
        "similarity": similarity(rounds),
        "sent": use(rounds, lambda event: event.bytes_sent),
        "received": use(rounds, lambda event: event.bytes_received),
        "choices": [
            {"round": c.round, "W": c.W, "R": c.R, "depth": c.depth, "codec": c.codec}
            | {"reason": c.reason}
            for c in record.choices
            if c.reason != "as before"
        ],
        "happened": [[e.t, *words] for e in record.events if (words := in_words(e))],
    }


def _metric(name: str) -> Any:
    def value(event: Evaluated) -> float | None:
        return event.metrics.get(name)

    return value


def _labels(records: Sequence[RunRecord]) -> list[str]:
    """Each run by as much of its path as tells it apart, and by its party."""
    paths = [record.path.resolve().parts for record in records]
    labels = []
    for record, own in zip(records, paths, strict=True):
        length = 1
        while length < len(own) and sum(p[-length:] == own[-length:] for p in paths) > 1:
            length += 1
        tail = own[-length:]
        labels.append("/".join(tail) + ("" if record.name in tail else f" · {record.name}"))
    return labels


def _windows(records: Sequence[RunRecord]) -> dict[str, list[dict[str, Any]]]:
    """Some rounds of every run, near its beginning, its middle and its end."""
    found: dict[str, list[dict[str, Any]]] = {place: [] for place in PLACES}
    for group in groups(records):
        leader = records[group[0]]
        for place, share in PLACES.items():
            window = window_at(leader.rounds, share)
            if window is None:
                continue
            found[place] += [
                {
                    "run": i,
                    "first": window.first,
                    "last": window.last,
                    "seconds": window.stop - window.start,
                    "spans": spans_in(
                        records[i].rounds, window, apart_s(leader, records[i], window.stop)
                    ),
                }
                for i in group
            ]
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings by their dotted names, as text."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return found


def _settings(record: RunRecord) -> dict[str, Any]:
    """All but the name that a simulation gave itself, which no two have in common."""
    simulated = {k: v for k, v in record.settings.get("simulated", {}).items() if k != "run"}
    return {**record.settings, **({"simulated": simulated} if simulated else {})}


def _side_by_side(
    records: Sequence[RunRecord], columns: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """For each name what each run has there, and whether that tells runs apart.

    Parties have settings of their own, so those are compared among runs of one party.
    """
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name) for column in columns]
        private = name.startswith("party.")
        found: dict[str, set[str | None]] = {}
        for record, value in zip(records, values, strict=True):
            found.setdefault(record.name if private else "", set()).add(value)
        differs = any(len(different) > 1 for different in found.values())
        rows.append({"name": name, "values": values, "differs": differs})
    return rows
