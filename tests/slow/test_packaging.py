"""The wheel, installed without extras into an environment of its own, trains.

The environment holds the dependencies that the wheel declares, with theirs, and nothing else: they
are linked from the environment of the tests, so nothing is downloaded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from celu.version import __version__

ROOT = Path(__file__).parents[2]
DEADLINE_S = 1800.0  # a passing test takes less than a minute
# Imports every module of celu and prints the packages that were not found. A module that needs an
# extra may turn that into an error which names the extra.
IMPORT_ALL = """
import importlib, pkgutil, celu
missing = set()
for module in pkgutil.walk_packages(celu.__path__, "celu."):
    try:
        importlib.import_module(module.name)
    except (ModuleNotFoundError, celu.CeluError) as error:
        while not isinstance(error, ModuleNotFoundError):
            error = error.__context__
        missing.add(error.name.partition(".")[0])
print(*sorted(missing))
"""


def run(*command: str | Path, cwd: Path, expected: int = 0) -> str:
    """The output of a command that ends with the expected code."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == expected, done.stdout
    return done.stdout


def dependencies(requirements: Iterable[Requirement]) -> set[str]:
    """The names of required distributions and of everything that they require in turn."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left = [(requirement, "") for requirement in requirements]
    while left:
        requirement, extra = left.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.add(name)
        for wanted in {"", *requirement.extras} - {extra for dist, extra in seen if dist == name}:
            seen.add((name, wanted))
            left += [(Requirement(text), wanted) for text in distribution(name).requires or []]
    return found


def link_packages(names: Iterable[str], site: Path) -> None:
    """Make installed distributions importable from another site-packages folder."""
    for name in names:
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return dist / f"celu-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def requirements(wheel: Path) -> list[Requirement]:
    """What the wheel declares, extras included."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"celu-{__version__}.dist-info/METADATA")
    return list(map(Requirement, message_from_bytes(metadata).get_all("Requires-Dist", [])))


@pytest.fixture(scope="module")
def bin_folder(
    wheel: Path, requirements: list[Requirement], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The programs of an environment with celu and its declared dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)[:-1]
    )
    link_packages(dependencies(requirements), site)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    run(*pip, "check", cwd=folder)
    return folder / "bin"


def optional(requirements: list[Requirement]) -> list[Requirement]:
    """What the extras for users add; the tools of developers are left out."""
    return [
        requirement
        for requirement in requirements
        if requirement.marker is not None
        and "'dev'" not in str(requirement.marker).replace('"', "'")
    ]


def test_the_wheel_holds_the_package_alone(wheel: Path, dist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"celu", f"celu-{__version__}.dist-info"}
    assert "celu/py.typed" in names
    assert (dist / f"celu-{__version__}.tar.gz").exists()


def test_no_module_needs_a_package_that_is_not_declared(
    bin_folder: Path, requirements: list[Requirement], tmp_path: Path
) -> None:
    extras = {canonicalize_name(requirement.name) for requirement in optional(requirements)}
    assert len(extras) >= 7
    find = "from importlib.util import find_spec; print([n for n in {!r} if find_spec(n)])"
    assert run(bin_folder / "python", "-c", find.format(sorted(extras)), cwd=tmp_path) == "[]\n"
    missing = run(bin_folder / "python", "-c", IMPORT_ALL, cwd=tmp_path).split()
    # torch's CUDA wheels need Triton themselves.
    assert set(missing) <= extras | {"triton"}


def test_it_trains_and_reports_in_an_empty_folder(bin_folder: Path, tmp_path: Path) -> None:
    celu = bin_folder / "celu"
    assert __version__ in run(celu, "version", cwd=tmp_path)
    run(celu, "data", "criteo", "clicks", "--rows", "2000", cwd=tmp_path)
    job = tmp_path / "clicks" / "job.toml"
    text = re.sub(r"(?m)^rounds = .*", "rounds = 20", job.read_text())
    job.write_text(re.sub(r"(?m)^batch_size = .*", "batch_size = 64", text))
    parties = sorted(tmp_path.glob("clicks/*/party.toml"))
    assert len(parties) == 2
    run(celu, "simulate", *parties, "--job", job, "--out", "trained", cwd=tmp_path)
    assert '"status": "done"' in (tmp_path / "trained" / "summary.json").read_text()
    run(celu, "report", "trained", "--out", "report.html", cwd=tmp_path)
    assert "<html" in (tmp_path / "report.html").read_text()


def test_the_benches_say_that_they_need_a_checkout(bin_folder: Path, tmp_path: Path) -> None:
    said = run(bin_folder / "celu", "bench", "step", cwd=tmp_path, expected=3)
    assert "not part of the installed package; clone the repository" in " ".join(said.split())
