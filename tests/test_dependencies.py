"""The pinned packages: all have hashes, and known vulnerabilities are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dependencies import audit, lock

PIP_AUDIT = """#!{python}
import sys
sys.stdout.write({stdout!r})
sys.stderr.write("ConnectionError: cannot be reached")
sys.exit({code})
"""
FOUND = """{"dependencies": [
  {"name": "idna", "version": "3.20", "vulns": [
    {"id": "PYSEC-1", "aliases": ["GHSA-a"], "fix_versions": ["3.21"]}]},
  {"name": "torch", "skip_reason": "not found"}]}"""
SKIPPED = '{"dependencies": [{"name": "idna", "skip_reason": "not found"}]}'
CLEAN = '{"dependencies": [{"name": "idna", "version": "3.20", "vulns": []}]}'


def test_every_pinned_package_but_torch_has_hashes() -> None:
    text = lock.LOCK.read_text(encoding="utf-8")
    locked = dict(re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.M))
    assert locked == lock.read_pins(), "run scripts/lock"
    assert "://" not in text


def test_what_the_tests_run_with_is_installed_by_hash_and_audited() -> None:
    root = lock.LOCK.parent
    setup = (root / "scripts" / "setup").read_text(encoding="utf-8")
    assert re.search(r"--require-hashes .*--requirement requirements\.lock$", setup, re.M)
    assert re.search(r"^timeout \d+ scripts/audit ", (root / ".ci" / "run").read_text(), re.M)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.6-cp314-cp314-macosx_14_0_arm64.whl", True),
        ("numpy-2.4.6-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.4.6-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.6-cp311-cp311-win_amd64.whl", False),
        ("numpy-2.4.6-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.4.5-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.4.6-py3-none-any.whl", True),
        ("numpy-2.4.6.tar.gz", True),
        ("numpy-0.3.2d.dev.tar.gz", False),
    ],
)
def test_the_hashes_are_those_of_files_that_can_be_installed(file: str, expected: bool) -> None:
    assert lock._is_installable(file, "2.4.6") is expected


@pytest.mark.parametrize(
    ("stdout", "ignored", "code", "expected"),
    [
        (FOUND, "", 1, "idna 3.20: PYSEC-1, fixed in 3.21"),
        (FOUND, "GHSA-a  celu does not call it", 0, "not in the database: torch"),
        (FOUND, "GHSA-a", 1, "GHSA-a: expected a reason"),
        (CLEAN, "# none", 0, "no known vulnerability in 1 packages"),
        (SKIPPED, "", 0, "audit: skipped: database not reachable"),
        ("", "", 0, "audit: skipped: database not reachable"),
    ],
)
def test_the_audit_fails_for_a_vulnerability_and_says_when_it_was_skipped(
    tmp_path: Path, stdout: str, ignored: str, code: int, expected: str
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(PIP_AUDIT.format(python=sys.executable, stdout=stdout, code=code))
    program.chmod(0o755)
    (tmp_path / "ignored.txt").write_text(ignored)
    scripts = Path(audit.__file__).parents[1]
    run = (
        f"import sys; sys.path.insert(0, {str(scripts)!r}); from pathlib import Path; "
        f"from dependencies import audit; audit.IGNORED = Path({str(tmp_path)!r}) / 'ignored.txt'; "
        f"audit.main({str(program)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, expected in done.stdout + done.stderr) == (code, True), done
