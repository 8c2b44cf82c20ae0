"""The page of dependencies: complete, and as the installed packages declare their licences."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [
    *PROJECT["dependencies"],
    *(
        requirement
        for extra, requirements in PROJECT["optional-dependencies"].items()
        if extra != "dev"
        for requirement in requirements
    ),
]
PAGE = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
LISTED = dict(re.findall(r"^\| ([\w-]+) \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE))


def name_of(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    assert found
    return found[0]


def test_the_page_lists_every_runtime_dependency() -> None:
    assert LISTED.keys() - {"package"} == {name_of(requirement) for requirement in REQUIREMENTS}


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=name_of)
def test_the_licence_is_the_one_that_the_package_declares(requirement: str) -> None:
    name = name_of(requirement)
    try:
        package = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    declared = " ".join(
        [
            package.get("License-Expression") or "",
            (package.get("License") or "")[:200],
            *(c for c in package.get_all("Classifier") or [] if c.startswith("License")),
        ]
    )
    declared = declared.replace("Python Software Foundation", "PSF")
    kind = re.split(r"[-, ]", LISTED[name])[0]  # such as Apache, BSD, MIT, LGPL
    assert kind in declared, declared


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=name_of)
def test_the_pinned_release_is_within_the_bounds(requirement: str) -> None:
    name = name_of(requirement)
    found = re.fullmatch(r"[\w-]+>=([\d.]+),<(\d+)", requirement)
    assert found, f"{requirement}: expected a lower and an upper bound"
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pin = re.search(rf"^{name}==([\d.]+)$", pins, re.MULTILINE)
    assert pin, f"{name}: not pinned in constraints.txt"

    def parts(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    assert parts(found[1]) <= parts(pin[1]) < parts(found[2])
    assert parts(found[2])[0] == parts(pin[1])[0] + 1, "the next major release"
