"""HTML pages: in one string with all they need inside, or with links to the server they came from.

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
STYLES = ("vendor/uplot.css", "style.css")
SCRIPTS = ("vendor/uplot.js", "figure.js", "charts.js", "gantt.js", "runs.js")
ICON = "icon.svg"


def page(title: str, body: str, data: Any, script: str) -> str:
    """A page of a title, a body (our own HTML), data, and the script that shows it.

    The script finds the data in `Page.data`. Nothing is fetched from anywhere.
    """
    styles = "\n".join(asset("celu.page", name) for name in STYLES)
    shared = (asset("celu.page", name) for name in SCRIPTS)
    scripts = "\n".join(f"<script>\n{text}\n</script>" for text in (*shared, script))
    head = f"""<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<style>
{styles}
</style>"""
    data_element = f'<script type="application/json" id="data">{embedded(data)}</script>'
    return _document(title, head, f"{body}\n{data_element}\n{scripts}")


def linked_page(title: str, body: str, folder: str, styles: str, script: str) -> str:
    """The same with links to files in a folder of the server that the page comes from.

    `styles` and `script` are the names of the page's own, after those that all pages share.
    """
    links = [f'<link rel="icon" href="{folder}/{ICON}">']
    links += [f'<link rel="stylesheet" href="{folder}/{name}">' for name in (*STYLES, styles)]
    scripts = [f'<script src="{folder}/{name}"></script>' for name in (*SCRIPTS, script)]
    return _document(title, "\n".join(links), "\n".join([body, *scripts]))


def _document(title: str, head: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="celu {__version__}">
<title>{escape(title)}</title>
{head}
</head>
<body>
{body}
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


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
