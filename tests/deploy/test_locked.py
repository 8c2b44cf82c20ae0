"""deploy/locked.py: the hashes of what an image installs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_only_what_pip_would_install_is_printed_with_all_its_hashes(tmp_path: Path) -> None:
    names = ["ml-dtypes", "Typing.Extensions", "celu", "torch"]  # as other tools may write them
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"install": [{"metadata": {"name": name}} for name in names]}))
    script = [sys.executable, str(ROOT / "deploy" / "locked.py"), str(report)]
    printed = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lock = (ROOT / "requirements.lock").read_text()
    found = [line.split("==")[0] for line in printed.splitlines() if "==" in line]
    assert found == ["ml_dtypes", "typing_extensions"]
    for line in printed.splitlines():
        assert line in lock
    assert printed.count("--hash=sha256:") > len(found)
    assert not printed.rstrip().endswith("\\")
