"""Every package and module is described, and nothing is described that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import celu

SOURCE = Path(celu.__file__).parent
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
