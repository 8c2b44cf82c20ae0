"""Dangerous imports and calls: none that executes data, and few that start processes or parse.

For each import and call, the lists below name the only files that may use it, with the reason.
`test_imports` forbids pickle and similar modules everywhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import celu

SOURCE = Path(celu.__file__).parent
ROOT = SOURCE.parents[1]
FILES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}

# Modules, and the files that may import them.
IMPORTS: dict[str, set[str]] = {
    "yaml": set(),  # creates objects of any type from text
    "xml": set(),
    "plistlib": set(),
    "tarfile": set(),  # members may have any path
    "zipfile": {"data/flights.py"},  # reads one named member of an installed package's file
    "multiprocessing": set(),  # it pickles
    # One call each, of the C library and of the OpenBLAS that NumPy has loaded, with numbers.
    "ctypes": {"launch/memory.py", "launch/blas.py"},
    # Starts celu's own processes with a fixed command line; they exchange length-prefixed bytes.
    "subprocess": {"psi/workers.py", "testing.py"},
}
# Calls, and the files that may make them.
CALLS: dict[str, set[str]] = {
    "eval": set(),
    "exec": set(),
    "compile": set(),
    "__import__": set(),
    "os.system": set(),
    "os.popen": set(),
    "torch.load": set(),
    "torch.jit.load": set(),
    "torch.hub.load": set(),
    "np.load": set(),  # reads archives and may unpickle; np.lib.format does neither
    # transport/wire.py parses a peer's bytes, after a check of their size; the demo parses what its
    # own party answers, ranks/ what the party's own ranks tell each other. The others parse files
    # that the party wrote itself.
    "json.loads": {
        "checkpoint/tensors.py",
        "cli/demo.py",
        "run_folder.py",
        "ranks/group.py",
        "ranks/meeting.py",
        "transport/wire.py",
        "psi/answered.py",
        "serving/scoring_parts.py",
        "psi/state.py",
        "data/memory_map.py",
        "checkpoint/content.py",
        "checkpoint/identity.py",
        "event_log.py",
        "testing.py",
        "record/tail.py",
        "record/run.py",
    },
    "json.load": set(),
    "from_json": {"serving/inference_protocol.py"},  # a client's bytes, after a check of their size
    # Imports by name: of modules in the user's own settings (models, policies), and celu's own.
    "import_module": {"__init__.py", "cli/app.py", "cli/bench.py", "kernels.py"},
    "importlib.import_module": {"models/building.py"},
}


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0], node.lineno


def called(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def problems(name: str, text: str) -> list[str]:
    """The imports and calls of a file that are not allowed there."""
    tree = ast.parse(text)
    used = [(IMPORTS, what, line) for what, line in imported(tree)]
    used += [(CALLS, what, line) for what, line in called(tree)]
    return [
        f"{name}:{line}: {what}"
        for rules, what, line in used
        if what in rules and name not in rules[what]
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_file_calls_and_imports_only_what_it_may(name: str) -> None:
    assert problems(name, FILES[name].read_text(encoding="utf-8")) == []


def test_every_listed_file_still_needs_its_exception() -> None:
    for rules, used_in in ((IMPORTS, imported), (CALLS, called)):
        for what, names in rules.items():
            for name in names:
                tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
                assert what in {used for used, _ in used_in(tree)}, f"{name} no longer has {what}"


@pytest.mark.parametrize(
    "text",
    ["import yaml", "from multiprocessing import Pool", "np.load(f)", "torch.load(f)", "eval(x)"],
)
def test_the_check_finds_a_forbidden_import_or_call(text: str) -> None:
    assert problems("session.py", text)


def test_what_arrives_is_read_within_a_bound() -> None:
    """No stream is read without a size, except where another bound applies."""
    for name, file in FILES.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            unbounded = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("read", "readlines", "recv")
                and not node.args
            )
            if unbounded:
                call = ast.unparse(node)
                # The output buffer of TLS, and a message whose size the carrier bounds.
                assert call in ("self._outgoing.read()", "socket.recv()"), f"{name}: {call}"


def test_every_test_that_the_threat_model_names_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(named) > 25
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
