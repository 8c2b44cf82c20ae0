"""A report's page and its file, which is written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from celu.errors import ConfigError
from celu.page.assemble import asset, standalone_page
from celu.record.run import RunRecord
from celu.report.content import content


def render(records: Sequence[RunRecord]) -> str:
    """The report of these runs, as HTML."""
    data = content(records)
    title = "Report of " + ", ".join(run["label"] for run in data["runs"])
    body, script = (asset("celu.report", name) for name in ("report.html", "report.js"))
    return standalone_page(title, body, data, script)


def write(text: str, out: Path) -> None:
    """Write a report atomically; raises ConfigError if that fails."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(
            f"--out: cannot write {out} ({error.strerror or error}); choose another file"
        ) from error
