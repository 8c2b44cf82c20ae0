"""ARCHITECTURE.md and the docstrings of packages name all that exists, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import celu
from test_imports import LAYERS

SOURCE = Path(celu.__file__).parent
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)


def modules_of(package: Path) -> set[str]:
    """The names of a package's modules and of the packages in it."""
    modules = {path.stem for path in package.glob("*.py") if path.stem != "__init__"}
    return modules | {path.parent.name for path in package.glob("*/__init__.py")}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_docstring_of_a_package_has_a_line_for_each_module(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    described = re.findall(r"^`(\w+)`: ", docstring or "", re.MULTILINE)
    assert sorted(described) == sorted(modules_of(package))


def test_the_tree_has_a_row_for_each_package_and_top_level_module() -> None:
    tree = PAGE.partition("## The tree")[2].partition("Beside it:")[0]
    rows = re.findall(r"^\| `(\w+(?:/|\.py))` \| ", tree, re.MULTILINE)
    modules = [path.name for path in SOURCE.glob("*.py")]
    assert sorted(rows) == sorted(modules + [f"{p.name}/" for p in PACKAGES if p.parent == SOURCE])


def test_the_import_rule_is_the_one_that_is_enforced() -> None:
    block = PAGE.partition("**Import rule.**")[2].split("```")[1]
    lines = [
        "__init__" if line == "the public names of `celu`" else line
        for line in block.strip().splitlines()
    ]
    assert [sorted(line.split(", ")) for line in lines] == [sorted(names) for names in LAYERS]


def test_every_path_in_the_page_exists() -> None:
    paths = set(re.findall(r"`([\w.-]*/[\w./-]*)`", PAGE))
    assert len(paths) > 50
    missing = {p for p in paths if not (ROOT / p).exists() and not (SOURCE / p).exists()}
    assert not missing
