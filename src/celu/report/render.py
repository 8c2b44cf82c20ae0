"""The report's page, and its file: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from celu.errors import ConfigError
from celu.page.assemble import asset, page
from celu.record.run import RunRecord
from celu.report.content import content


def render(records: Sequence[RunRecord]) -> str:
    """The report of these runs, as HTML."""
    shown = content(records)
    title = "Report of " + ", ".join(run["label"] for run in shown["runs"])
    body, script = (asset("celu.report", name) for name in ("report.html", "report.js"))
    return page(title, body, shown, script)


def write(text: str, out: Path) -> None:
    """Put a report into its place; raises ConfigError where that cannot be."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(
            f"--out: expected a file that can be written, got {out} "
            f"({error.strerror or error}); choose another"
        ) from error
