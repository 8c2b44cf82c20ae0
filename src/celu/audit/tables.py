"""An audit as tables of text, for the terminal, reports and the dashboard."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from celu.audit.result import Attack, Audit, ColumnLeak, LabelLeak, read_audit
from celu.errors import ConfigError

_MAX_COLUMNS = 50  # in a table; audit.json has all


@dataclass(frozen=True)
class AuditTable:
    """A title, headings, rows, and notes below."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def tables_of(audit: Audit) -> list[AuditTable]:
    """One table for each host of a guest, or one of a host's columns."""
    found = [_label_table(leak, audit) for leak in audit.labels]
    if audit.columns:
        found.append(_column_table(audit.columns))
    return found


def notes_of(audit: Audit) -> list[str]:
    """What to know about all tables: how they were measured, what is promised and not covered."""
    times = "exposure" if audit.exposures == 1 else "exposures"
    made = f"{audit.rows:,} rows, at most {audit.exposures} {times} of each, {audit.seconds:.1f} s."
    promised = [f"Promised of {promise}" for promise in audit.promises] or [
        "The contract has no defence: nothing is promised"
    ]
    sentences = [f"{note[:1].upper()}{note[1:]}." for note in [*promised, *audit.notes]]
    return [made, *sentences, *audit.not_covered]


def audit_content(folder: Path) -> dict[str, Any] | None:
    """The audit of a run folder as JSON for a page; None without one.

    A damaged file becomes a note: a page shows what else there is.
    """
    try:
        audit = read_audit(folder)
    except ConfigError as error:
        return {"tables": [], "notes": [str(error)]}
    if audit is None:
        return None
    return {"tables": [asdict(table) for table in tables_of(audit)], "notes": notes_of(audit)}


def _label_table(leak: LabelLeak, audit: Audit) -> AuditTable:
    headings = ["attack", "dZ of", "AUC", "TPR", "own AUC", "own TPR"]
    has_canaries = any(attack.canaries is not None for attack in leak.attacks)
    if has_canaries:
        headings += ["canary AUC", "canary TPR"]
    rows = [_attack_row(attack, has_canaries) for attack in leak.attacks]
    notes = [
        "Of rows whose labels the attacker does not know; it knows half. TPR: at a false positive "
        "rate of 1 %. Own: among rows of similar forecasts. Guessing: AUC 0.5, TPR 0.01."
    ]
    if has_canaries:
        notes.append(
            f"Canaries: {audit.canaries:,} training rows with random labels; their AUC is "
            f"uncertain by about {_uncertainty(audit.canaries):.2f}."
        )
    if (found := leak.completion) is not None:
        canary = "" if found.canary_auc is None else f"; canaries {_figure(found.canary_auc)}"
        notes.append(
            f"Model completion with {found.known} labels, from Z: AUC {_figure(found.exposed_auc)} "
            f"of training rows, {_figure(found.unseen_auc)} of held-out rows, "
            f"gap {_figure(found.gap)}{canary}. The gap is what training adds to the host's own "
            "columns."
        )
    return AuditTable(f"What {leak.host} can learn of labels", headings, rows, notes)


def _attack_row(attack: Attack, has_canaries: bool) -> list[str]:
    leaks = [attack.rows.auc, attack.rows.tpr, attack.rows.own_auc, attack.rows.own_tpr]
    if has_canaries:
        found = attack.canaries
        leaks += [None, None] if found is None else [found.auc, found.tpr]
    return [attack.name, attack.view, *map(_figure, leaks)]


def _column_table(columns: list[ColumnLeak]) -> AuditTable:
    notes = [
        "The share that a decoder recovers beyond the mean of a number or the most frequent value "
        "of a category; it knows half of the rows."
    ]
    if len(columns) > _MAX_COLUMNS:
        notes.append(f"The first {_MAX_COLUMNS} of {len(columns)} columns; audit.json has all.")
    return AuditTable(
        "What the guest can learn of columns",
        ["column", "kind", "from one Z", "from all recorded Z"],
        [
            [column.name, column.kind, _figure(column.one), _figure(column.all)]
            for column in columns[:_MAX_COLUMNS]
        ],
        notes,
    )


def _uncertainty(rows: int) -> float:
    """Two standard errors of the AUC of a guess, with half of the rows positive."""
    return 2 * math.sqrt(1 / (3 * max(1, rows)))


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
