"""The notebook of the docs runs, and shows the outputs that it gives."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from docs.blocks import ROOT
from handbook.notebook import execute, render

pytest.importorskip("matplotlib", reason="the extra figures is absent")
PATH = ROOT / "docs" / "notebook.ipynb"


def outputs(cells: list[dict[str, Any]]) -> list[list[dict[str, str]]]:
    """What each code cell shows, by format, with every number and name of a model replaced."""

    def shown(output: dict[str, Any]) -> dict[str, str]:
        data = output.get("data", {"stdout": output.get("text")})
        texts = {k: "image" if k == "image/png" else "".join(v) for k, v in data.items()}
        return {k: re.sub(r"[0-9a-f]{16,}|\d[\d.,]*", "#", text) for k, text in texts.items()}

    return [[shown(o) for o in cell["outputs"]] for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_runs_and_its_outputs_are_those_in_the_file() -> None:
    cells = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
    assert outputs(execute(cells)) == outputs(cells)
    formats = {name for cell in outputs(cells) for output in cell for name in output}
    assert formats == {"text/html", "image/png", "text/plain", "stdout"}


def test_an_error_in_a_cell_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        execute([{"cell_type": "code", "source": ["x = 1\n", "x / 0"]}])


def test_the_site_shows_text_code_table_and_figure() -> None:
    page = render(PATH.read_text(encoding="utf-8"))
    for part in ("<h1>", "celu.simulate(", "<caption>celu result", "data:image/png;base64,"):
        assert part in page
