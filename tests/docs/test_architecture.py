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


# A thread, a pool of them, or the base class of one that is named by its subclass.
STARTS_THREADS = re.compile(r"Threads?$|^super\(\)\.__init__$")


def thread_names() -> set[str]:
    """The names that threads and pools get in the source, as far as they are constant."""
    names = set()
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and STARTS_THREADS.search(ast.unparse(call.func)):
                given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "name")]
                texts = [getattr(name, "values", [name])[0] for name in given]
                names |= {str(text.value) for text in texts if isinstance(text, ast.Constant)}
    return names


def test_the_table_of_threads_has_all() -> None:
    table = PAGE.partition("| thread |")[2].partition("\n\n")[0]
    names = thread_names()
    assert len(names) > 15
    assert not {name for name in names if f"`{name}" not in table}


def test_every_path_in_the_page_exists() -> None:
    paths = set(re.findall(r"`([\w.-]*/[\w./-]*)`", PAGE))
    assert len(paths) > 50
    missing = {p for p in paths if not (ROOT / p).exists() and not (SOURCE / p).exists()}
    assert not missing
