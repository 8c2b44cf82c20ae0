"""A table of facts as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping


def html_table(title: str, rows: Mapping[str, str]) -> str:
    """A table with a title and a row for each fact."""
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{html.escape(title)}</caption><tbody>{cells}</tbody></table>"
