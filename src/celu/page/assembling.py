"""One HTML page in one string: style, scripts and data inside, nothing fetched from anywhere.

What is shown may hold text of any kind (names, error messages): data goes into the page as JSON
that cannot end its element, and scripts put it there as text, never as HTML.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from celu.version import __version__

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_STYLES = ("vendor/uplot.css", "style.css")
_SCRIPTS = ("vendor/uplot.js", "figure.js", "charts.js", "gantt.js", "runs.js")


def page(title: str, body: str, data: Any, script: str, *, connects: bool = False) -> str:
    """A page of a title, a body (our own HTML), data, and the script that shows it.

    The script finds the data in `Page.data`. With `connects` it may ask the server that it came
    from for more.
    """
    policy = _POLICY + ("; connect-src 'self'" if connects else "")
    styles = "\n".join(asset("celu.page", name) for name in _STYLES)
    scripts = "\n".join(f"<script>\n{text}\n</script>" for text in (*_shared(), script))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="celu {__version__}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{styles}
</style>
</head>
<body>
{body}
<script type="application/json" id="data">{embedded(data)}</script>
{scripts}
</body>
</html>
"""


def embedded(data: Any) -> str:
    """Data as JSON that may stand inside a script element.

    NaN and Inf, which JSON lacks, become null.
    """
    text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def asset(package: str, name: str) -> str:
    """The text of a file that is part of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _shared() -> list[str]:
    return [asset("celu.page", name) for name in _SCRIPTS]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
