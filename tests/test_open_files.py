"""A process that has no file left to open waits for one instead of ending its run."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from celu import open_files
from celu.checkpoint.disk import RealDisk
from celu.errors import CheckpointError
from celu.run_folder import RunFolder


class NoFilesLeft:
    """Every file that this process may have open is open, until `release`."""

    def __init__(self) -> None:
        self.num_pauses = 0
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        descriptors = [entry.name for entry in Path("/proc/self/fd").iterdir()]
        highest = max(int(name) for name in descriptors)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, self._limits[1]))
        self._taken: list[int] = []
        try:
            while True:
                self._taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass

    def pause(self, seconds: float) -> None:
        """Called instead of `time.sleep`: strangers are disconnected at the third time."""
        self.num_pauses += 1
        if self.num_pauses == 3:
            self.release()

    def release(self) -> None:
        while self._taken:
            os.close(self._taken.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


@pytest.fixture
def no_files_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[NoFilesLeft]:
    limit = NoFilesLeft()
    monkeypatch.setattr(open_files.time, "sleep", limit.pause)
    try:
        yield limit
    finally:
        limit.release()


def test_a_checkpoint_is_written_once_a_file_can_be_opened(
    tmp_path: Path, no_files_left: NoFilesLeft
) -> None:
    RealDisk().write(tmp_path / "part", [b"ab", b"c"])
    assert no_files_left.num_pauses == 3
    assert (tmp_path / "part").read_bytes() == b"abc"


def test_a_folder_is_synced_once_it_can_be_opened(
    tmp_path: Path, no_files_left: NoFilesLeft
) -> None:
    RealDisk().sync_folder(tmp_path)
    assert no_files_left.num_pauses == 3


def test_a_run_folder_is_written_once_a_file_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run", {})
    limit = NoFilesLeft()
    monkeypatch.setattr(open_files.time, "sleep", limit.pause)
    try:
        folder.save_weights({"bottom": torch.nn.Linear(2, 1)})
    finally:
        limit.release()
    folder.finish({"rounds": 1})
    assert limit.num_pauses == 3
    assert (tmp_path / "run" / "weights.safetensors").stat().st_size > 0
    assert '"rounds": 1' in (tmp_path / "run" / "summary.json").read_text(encoding="utf-8")


def test_the_wait_for_a_file_is_bounded_and_its_end_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "RETRY_S", 0.0)
    folder = RunFolder(tmp_path / "run", {})
    limit = NoFilesLeft()
    monkeypatch.setattr(open_files.time, "sleep", limit.pause)  # a longer wait would succeed
    try:
        with pytest.raises(CheckpointError, match="too many open files"):
            folder.finish({"rounds": 1})
    finally:
        limit.release()


def test_the_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    code = (
        "import resource; from celu import open_files; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200)); open_files.raise_limit(); "
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.split() == ["200", "200"]
