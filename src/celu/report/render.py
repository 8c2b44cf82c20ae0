"""A report's page."""

from __future__ import annotations

from collections.abc import Sequence

from celu.page.assemble import asset, standalone_page
from celu.record.run import RunRecord
from celu.report.content import content


def render(records: Sequence[RunRecord]) -> str:
    """The report of these runs, as HTML."""
    data = content(records)
    title = "Report of " + ", ".join(run["label"] for run in data["runs"])
    body, script = (asset("celu.report", name) for name in ("report.html", "report.js"))
    return standalone_page(title, body, data, script)
