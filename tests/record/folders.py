"""Hand-written run folders for tests of their readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

JOB: dict[str, Any] = {
    "seed": 1,
    "batch_size": 64,
    "rounds": 40,
    "guest": "airline",
    "hosts": {"weather": {"z_width": 8}},
    "method": {"W": {"guest": 5, "host": 5}, "R": {"guest": 3, "host": 1}, "depth": 1},
    "evaluation": {"every": 10, "metric": "auc", "target": None},
}


def round_event(n: int, **overrides: Any) -> dict[str, Any]:
    """Round n of a run with rounds of half a second."""
    start = 0.5 * (n - 1)
    return {
        "t": 1.0 + 0.5 * n,
        "event": "round",
        "round": n,
        "seconds": 0.5 * n,
        "local_steps": 2 * n,
        "bubbles": min(n, 3),
        "waited_s": 0.2 * n,
        "bytes_sent": 1000 * n,
        "bytes_received": 1000 * n,
        "evaluation_bytes": 0,
        "control_bytes": 10,
        "loss": 1.0 / n,
        "similarity_quantiles": [0.1, 0.5, 0.7, 0.8, 0.9, 1.0],
        "spans": [
            ["local", start, start + 0.1],
            ["wait", start + 0.1, start + 0.3],
            ["receive", start + 0.15, start + 0.3],
            ["compute", start + 0.3, start + 0.4],
            ["encode", start + 0.4, start + 0.45],
            ["send", start + 0.45, start + 0.6],
        ],
        **overrides,
    }


def evaluation_event(n: int, auc: float, **overrides: Any) -> dict[str, Any]:
    return {
        "t": 1.0 + 0.5 * n,
        "event": "evaluation",
        "round": n,
        "seconds": 0.5 * n,
        "evaluating_s": 0.01 * n,
        "auc": auc,
        "loss": 1.0 - auc,
        "bytes_sent": 1000 * n,
        "bytes_received": 1000 * n,
        "evaluation_bytes": 500 * n,
        "control_bytes": 10,
        "target_reached": False,
        **overrides,
    }


def events(rounds: int = 40) -> list[dict[str, Any]]:
    """The events of an uninterrupted run."""
    found: list[dict[str, Any]] = [
        {"t": 0.0, "event": "attempt", "number": 1},
        {"t": 0.9, "event": "connected", "peers": ["weather"], "secure": True},
        {"t": 1.0, "event": "started", "num_rounds": rounds},
    ]
    for n in range(1, rounds + 1):
        found.append(round_event(n))
        if n % 10 == 0:
            found.append(evaluation_event(n, 0.6 + n / 400))
    return found


def write_run(
    folder: Path,
    written: list[dict[str, Any]] | None = None,
    *,
    party: str = "airline",
    job: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True)
    lines = [json.dumps(event) + "\n" for event in (events() if written is None else written)]
    (folder / "events.jsonl").write_text("".join(lines))
    role = "guest" if party == "airline" else "host"
    settings = {
        "job": {**JOB, **(job or {})},
        "party": {"name": party, "role": role, "threads": 1},
        "versions": {"celu": "0.1.0", "python": "3.11.2"},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder
