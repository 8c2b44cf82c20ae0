"""Every example runs with the command in its docstring, and uses only the public names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_the_docstring_has_the_command() -> None:
    for path in EXAMPLES:
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert f"python examples/{path.name}" in docstring, path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_imports_no_submodule_of_celu(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("celu.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("celu")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs_and_prints_a_result(path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=1800, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "AUC" in ran.stdout or "accuracy" in ran.stdout


def test_a_users_own_model_takes_under_25_lines_and_inherits_only_from_torch() -> None:
    tree = ast.parse((EXAMPLES[0].parent / "own_model.py").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    lines = sum((node.end_lineno or 0) - node.lineno + 1 for node in classes)
    assert lines < 25
    assert [ast.unparse(base) for node in classes for base in node.bases] == ["nn.Module"] * 2
