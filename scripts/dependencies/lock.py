"""Writes `requirements.lock`: the packages of `constraints.txt`, with the SHA-256 of their files.

torch is left out. Each index has its own builds of torch, for CPUs or for a version of CUDA, and
the CUDA packages that a build needs differ. scripts/setup installs it after the others.
The hashes are those that pip's index lists, for CPython 3.11 and newer on Linux (glibc) and macOS.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._internal.models.index import PyPI  # the index that pip uses by default

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
LEFT_OUT = {"torch"}
_HEADER = """\
# Written by scripts/lock: the packages of constraints.txt, with the SHA-256 of their files.
# torch is left out: each index has its own builds of it.
"""
_LINK = re.compile(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"')
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)


def read_pins(path: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """The versions in `constraints.txt`, by package, without torch."""
    pins = dict(_PIN.findall(path.read_text(encoding="utf-8")))
    return {name: version for name, version in pins.items() if name not in LEFT_OUT}


def write_lock() -> None:
    """Write `requirements.lock`; exits with a message if a package has no file."""
    lines = [_HEADER]
    for name, version in read_pins().items():
        hashes = sorted(set(_hashes(name, version)))
        if not hashes:
            sys.exit(f"lock: the index lists no file of {name} {version} that could be installed")
        lines.append(
            " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{h}" for h in hashes)])
        )
    LOCK.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _hashes(name: str, version: str) -> Iterator[str]:
    index = os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    request = urllib.request.Request(  # noqa: S310 - the index that pip would use
        f"{index}/{canonicalize_name(name)}/", headers={"Accept": "text/html"}
    )
    with urllib.request.urlopen(request, timeout=60, context=context) as page:  # noqa: S310
        text = page.read().decode("utf-8")
    for file, digest in _LINK.findall(text):
        if _is_installable(file, version):
            yield digest


def _is_installable(file: str, version: str) -> bool:
    """Whether a file is a source archive or a wheel of this version, for a platform of ours."""
    try:
        if not file.endswith(".whl"):
            return str(parse_sdist_filename(file)[1]) == version
        _, found, _, tags = parse_wheel_filename(file)
    except ValueError:  # other names and versions of long ago
        return False
    return str(found) == version and any(
        re.match(r"any$|manylinux|linux|macosx", tag.platform)
        and re.match(r"py3|py2\.py3|cp3(\d+)", tag.interpreter)
        and (tag.abi == "abi3" or not re.match(r"cp3([0-9]|10)$", tag.interpreter))
        for tag in tags
    )


if __name__ == "__main__":
    write_lock()
