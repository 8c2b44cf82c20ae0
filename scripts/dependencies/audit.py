"""Looks up the packages of `constraints.txt` in a database of known vulnerabilities.

It runs pip-audit, which has its own environment, since it needs other versions of some packages.
Exits with 1 for a vulnerability that `ignored.txt` does not list. Where no database can be reached,
it says so and exits with 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

ROOT = Path(__file__).resolve().parents[2]
IGNORED = Path(__file__).with_name("ignored.txt")
_DATABASES = ("pypi", "osv")
_TIMEOUT_S = 120.0


class Dependency(TypedDict, total=False):
    """A package in pip-audit's report."""

    name: str
    version: str
    vulns: list[dict[str, Any]]
    skip_reason: str


def read_ignored(text: str) -> dict[str, str]:
    """Reasons by id; exits with a message for a line without a reason."""
    ignored = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(" ")
            if not reason.strip():
                sys.exit(f"audit: {IGNORED.name}: {name}: expected a reason after the id")
            ignored[name] = reason.strip()
    return ignored


def find_vulnerabilities(report: list[Dependency], ignored: dict[str, str]) -> list[str]:
    """A line for each vulnerability that is not ignored under any of its ids."""
    return [
        f"{package['name']} {package['version']}: {found['id']}, fixed in "
        f"{', '.join(found.get('fix_versions', [])) or 'no release'}"
        for package in report
        for found in package.get("vulns", [])
        if not {found["id"], *found.get("aliases", [])} & ignored.keys()
    ]


def main(pip_audit: str) -> None:
    """Audit, with the program `pip_audit`."""
    ignored = read_ignored(IGNORED.read_text(encoding="utf-8"))
    for database in _DATABASES:
        report = _ask(pip_audit, database)
        audited = [package for package in report if "skip_reason" not in package]
        if not audited:  # every package is skipped if the database answers none of the questions
            continue
        vulnerabilities = find_vulnerabilities(report, ignored)
        if vulnerabilities:
            sys.exit("\n".join(["audit: known vulnerabilities", *vulnerabilities]))
        missing = [package["name"] for package in report if "skip_reason" in package]
        unknown = f"; not in the database: {', '.join(missing)}" if missing else ""
        _say(f"no known vulnerability in {len(audited)} packages{unknown}")
        return
    _say("skipped: database not reachable")


def _ask(pip_audit: str, database: str) -> list[Dependency]:
    """pip-audit's report; empty if there is none."""
    command = [pip_audit, "--requirement", str(ROOT / "constraints.txt"), "--no-deps"]
    command += ["--disable-pip", "--vulnerability-service", database, "--timeout", "10"]
    command += ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(  # noqa: S603 - the program that scripts/audit installed
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        report: list[Dependency] = json.loads(done.stdout)["dependencies"]
        return report
    except subprocess.TimeoutExpired:
        _say(f"{database}: no report within {_TIMEOUT_S:g} s")
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        _say(f"{database}: no report: {last[:200]}")
    return []


def _say(text: str) -> None:
    sys.stdout.write(f"audit: {text}\n")


if __name__ == "__main__":
    main(sys.argv[1])
