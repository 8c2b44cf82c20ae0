"""The content of a report as JSON: chart series, summaries, tables. `report.js` lays it out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from celu.audit.tables import audit_content
from celu.doctor.live_rules import RunStatus, warnings
from celu.record.folders import labels
from celu.record.run import RunRecord
from celu.record.series import learning_series, throughput_series
from celu.record.summary import describe_event, summarize
from celu.record.timeline import POSITIONS, choose_window, group_by_run, spans_in
from celu.report.clocks import clock_offset_s
from celu.report.comparison import what_federation_adds


def content(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Everything that a report of these runs shows."""
    return {
        "runs": [_run(*one) for one in zip(records, labels(records), strict=True)],
        "windows": _windows(records),
        "settings": _compare(records, [_flatten(_settings(record)) for record in records]),
        "versions": _compare(records, [_flatten(record.versions) for record in records]),
    }


def _run(record: RunRecord, label: str) -> dict[str, Any]:
    return {
        "label": label,
        "summary": summarize(record),
        "federation": what_federation_adds(record),
        "audit": audit_content(record.path),
        **learning_series(record.rounds, record.evaluations),
        **throughput_series(record.rounds),
        "warnings": [
            [f.topic, f.message, f.fix, f.level] for f in warnings(RunStatus.from_record(record))
        ],
        "choices": [
            {"round": c.round, "W": c.W, "R": c.R, "depth": c.depth, "codec": c.codec}
            | {"reason": c.reason}
            for c in record.choices
            if not c.is_unchanged
        ],
        "event_log": [[e.t, *text] for e in record.events if (text := describe_event(e))],
    }


def _windows(records: Sequence[RunRecord]) -> dict[str, list[dict[str, Any]]]:
    """A few rounds of every run, near its beginning, its middle and its end."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in POSITIONS}
    for group in group_by_run(records):
        reference = records[group[0]]
        for name, position in POSITIONS.items():
            window = choose_window(reference.rounds, position)
            if window is None:
                continue
            found[name] += [
                {
                    "run": i,
                    "first": window.first_round,
                    "last": window.last_round,
                    "seconds": window.seconds,
                    "spans": spans_in(
                        records[i].rounds,
                        window,
                        clock_offset_s(reference, records[i], window.stop_s),
                    ),
                }
                for i in group
            ]
    return found


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings by dotted name, as text."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flatten(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return found


def _settings(record: RunRecord) -> dict[str, Any]:
    """All settings but a simulation's run id, which differs between any two runs."""
    simulated = {k: v for k, v in record.settings.get("simulated", {}).items() if k != "run"}
    return {**record.settings, **({"simulated": simulated} if simulated else {})}


def _compare(
    records: Sequence[RunRecord], columns: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """One row per name: each run's value, and whether the values differ.

    A party's own settings are compared between runs of that party only.
    """
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name) for column in columns]
        private = name.startswith("party.")
        by_party: dict[str, set[str | None]] = {}
        for record, value in zip(records, values, strict=True):
            by_party.setdefault(record.name if private else "", set()).add(value)
        differs = any(len(different) > 1 for different in by_party.values())
        rows.append({"name": name, "values": values, "differs": differs})
    return rows
