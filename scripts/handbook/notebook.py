"""Runs the notebook of the docs, writes its outputs into it, and shows it on the site.

    PYTHONPATH=scripts .venv/bin/python -m handbook.notebook docs/notebook.ipynb

It needs no Jupyter: the code cells run in this interpreter, as a kernel would run them.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import html
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

Cell = dict[str, Any]


def execute(cells: list[Cell]) -> list[Cell]:
    """The cells with the outputs of the code, which runs from top to bottom; raises its errors."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    done, count = [], 0
    for cell in cells:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _run("".join(cell["source"]), namespace, count)
            done.append({**cell, "execution_count": count, "outputs": outputs})
        else:
            done.append(cell)
    return done


def _run(source: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)  # noqa: S102 - our own notebook
        if isinstance(last, ast.Expr):
            expression = ast.Expression(last.value)
            value = eval(compile(expression, "<cell>", "eval"), namespace)  # noqa: S307 - as above
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        data = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
        outputs.append({**data, "data": _display(value)})
    return outputs


def _display(value: object) -> dict[str, Any]:
    """A value in the formats that a notebook shows."""
    shown: dict[str, Any] = {}
    if (text := getattr(value, "_repr_html_", lambda: None)()) is not None:
        shown["text/html"] = [text]
    if hasattr(value, "_repr_png_"):
        shown["image/png"] = base64.b64encode(value._repr_png_()).decode()
    return {**shown, "text/plain": [type(value).__name__ if shown else repr(value)]}


def render(text: str) -> str:
    """A notebook as the body of a page."""
    markdown, parts = MarkdownIt("commonmark").enable("table"), []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # Its links lead to pages of the same folder, which the site has as HTML.
            parts.append(re.sub(r'href="([\w-]+)\.md', r'href="\1.html', markdown.render(source)))
            continue
        parts.append(f"<pre><code>{html.escape(source)}</code></pre>")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "text/html" in data:
                parts.append("".join(data["text/html"]))
            elif "image/png" in data:
                parts.append(f'<img alt="figure" src="data:image/png;base64,{data["image/png"]}">')
            else:
                parts.append(f"<pre>{html.escape(''.join(data['text/plain']))}</pre>")
    return "\n".join(parts)


def main(path: Path) -> None:
    """Run a notebook and write its outputs into the file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"] = execute(notebook["cells"])
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
