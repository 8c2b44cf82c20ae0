"""Keys made by `celu certs`, for all tests of commands."""

from pathlib import Path

import pytest

from cli.pair import celu


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("airline", "weather", "stranger"):
        for arguments in (["ca"], ["party", "airline" if name == "stranger" else name]):
            made = celu("certs", *arguments, "--dir", folder / name / "certs")
            assert made.returncode == 0, made.stderr
    return folder
