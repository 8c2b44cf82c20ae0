"""What a report shows, as JSON: lines, figures, tables. How it looks is up to `report.js`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from celu.doctor.live_rules import RunStatus, warnings
from celu.record.folders import labels
from celu.record.run import RunRecord
from celu.record.series import series_of, use_of
from celu.record.summary import figures, in_words
from celu.record.timeline import PLACES, groups, spans_in, window_at
from celu.report.clocks import apart_s


def content(records: Sequence[RunRecord]) -> dict[str, Any]:
    """All that a report of these runs shows."""
    return {
        "runs": [_run(*one) for one in zip(records, labels(records), strict=True)],
        "windows": _windows(records),
        "settings": _side_by_side(records, [_flat(_settings(record)) for record in records]),
        "versions": _side_by_side(records, [_flat(record.versions) for record in records]),
    }


def _run(record: RunRecord, label: str) -> dict[str, Any]:
    return {
        "label": label,
        "figures": figures(record),
        **series_of(record.rounds, record.evaluations),
        **use_of(record.rounds),
        "warnings": [[f.topic, f.message, f.fix] for f in warnings(RunStatus.from_record(record))],
        "choices": [
            {"round": c.round, "W": c.W, "R": c.R, "depth": c.depth, "codec": c.codec}
            | {"reason": c.reason}
            for c in record.choices
            if c.reason != "as before"
        ],
        "happened": [[e.t, *words] for e in record.events if (words := in_words(e))],
    }


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
