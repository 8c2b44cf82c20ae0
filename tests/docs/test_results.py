"""Every figure in the docs is the rounded value of a result file that a bench wrote.

In a table with the columns `figure` and `file`, each row names a figure of that file. A table under
a comment `rows of FILE` shows some of the file's rows and columns, with the same column names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from docs.blocks import ROOT

RESULTS = ROOT / "docs" / "results"
Line = dict[str, str]


def result(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return content


def tables(path: Path) -> Iterator[tuple[str, list[Line]]]:
    """Each table of a page, with the last line of text before it."""
    text = path.read_text(encoding="utf-8")
    for found in re.finditer(r"([^\n]*)\n\n((?:\|[^\n]*\|\n)+)", text):
        cells = [
            [cell.strip().strip("`") for cell in line.strip("|").split("|")]
            for line in found[2].splitlines()
        ]
        yield found[1], [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def is_rounded(shown: str, value: object) -> bool:
    """Whether the text is this value, rounded to the text's number of digits."""
    if value is None or isinstance(value, str):
        return shown == (value or "none")
    try:
        number = float(shown)
    except ValueError:
        return False
    assert isinstance(value, int | float)
    digits = len(shown.partition(".")[2])
    return abs(number - value) <= 0.5 * 10.0**-digits + 1e-9


# Options that decide what a bench measures; others say how often, and where files are.
SELECTING = ("--large", "--paper-shape", "--device", "--profile")
FIGURES = [
    line
    for page in ("results.md", "paper.md", "scaling.md")
    for _, lines in tables(ROOT / "docs" / page)
    for line in lines
    if {"figure", "file"} <= line.keys()
]
ROWS = [
    (comment.split()[3].rstrip(","), lines)
    for page in ("choosing.md", "gateway.md", "privacy.md")
    for comment, lines in tables(ROOT / "docs" / page)
    if comment.startswith("<!-- rows of ")
]


@pytest.mark.parametrize("line", FIGURES, ids=lambda line: f"{line['file']}-{line['figure']}")
def test_a_figure_is_the_one_that_its_command_wrote(line: Line) -> None:
    written = result(line["file"])
    assert is_rounded(line["value"], written["figures"][line["figure"]])
    shown, actual = line["command"].split(), written["command"].split()
    names = [[*takewhile(lambda word: word[:2] != "--", words)] for words in (shown, actual)]
    assert names[0] == names[1] and set(shown) <= set(actual), written["command"]
    chosen = {word for word in actual if word in SELECTING}
    assert chosen <= set(shown), written["command"]


def test_every_result_file_is_in_the_docs() -> None:
    files = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*.json")}
    assert {line["file"] for line in FIGURES} == files


@pytest.mark.parametrize(
    ("file", "lines"), ROWS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_table_shows_rows_of_the_result(file: str, lines: list[Line]) -> None:
    rows = result(file)["rows"]
    for line in lines:
        shown = [
            all(key in row and is_rounded(text, row[key]) for key, text in line.items())
            for row in rows
        ]
        assert sum(shown) == 1, line


def test_the_tables_are_found() -> None:
    assert len(FIGURES) > 30 and len(ROWS) == 10 and all(lines for _, lines in ROWS)


@pytest.mark.parametrize(
    ("shown", "value", "right"),
    [("0.59", 0.589, True), ("0.58", 0.589, False), ("none", None, True), ("605", 605.48, True)],
)
def test_rounding(shown: str, value: float | None, right: bool) -> None:
    assert is_rounded(shown, value) is right
