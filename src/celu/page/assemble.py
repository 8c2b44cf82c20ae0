"""Assembly of HTML pages: standalone in one string, or with links to the server's own files.

Data may hold any text (names, error messages). It enters the page as JSON that cannot close its
script element, and scripts insert it as text nodes, never as HTML.
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


def standalone_page(title: str, body: str, data: Any, script: str) -> str:
    """A page that loads nothing from a network: a body (our own HTML), data and its script.

    The script reads the data from `Page.data`.
    """
    styles = "\n".join(asset("celu.page", name) for name in STYLES)
    shared = (asset("celu.page", name) for name in SCRIPTS)
    scripts = "\n".join(f"<script>\n{text}\n</script>" for text in (*shared, script))
    head = f"""<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<style>
{styles}
</style>"""
    data_element = f'<script type="application/json" id="data">{script_safe_json(data)}</script>'
    return _document(title, head, f"{body}\n{data_element}\n{scripts}")


def linked_page(title: str, body: str, folder: str, styles: str, script: str) -> str:
    """A page that links to files in a folder of its own server.

    `styles` and `script` name the page's own files; they load after the shared ones.
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


def script_safe_json(data: Any) -> str:
    """JSON that is safe inside a script element; NaN and infinities become null."""
    text = json.dumps(replace_non_finite(data), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def asset(package: str, name: str) -> str:
    """The text of a file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def replace_non_finite(value: Any) -> Any:
    """JSON values with null for NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(inner) for inner in value]
    return value
