"""The limits of a guest at a host: counted before an answer, and across restarts and kills."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from celu.errors import ConfigError
from celu.serving.quota import QUOTA_FILE, Quota

DAY_S = 86_400.0
KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from celu.serving.quota import Quota
quota = Quota(Path(sys.argv[1]), 100, "a", distinct_rows_per_day=9, clock=lambda: 0.0)
assert quota.spend(np.arange(7)) is None
os.kill(os.getpid(), signal.SIGKILL)
"""


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def quota(folder: Path, limit: int = 5, *, day: float = 3.0, identity: str = "a") -> Quota:
    return Quota(folder, 100, identity, distinct_rows_per_day=limit, clock=lambda: day * DAY_S)


def test_rows_beyond_the_day_are_refused_and_not_counted(tmp_path: Path) -> None:
    counted = quota(tmp_path)
    assert counted.spend(rows(1, 2, 3, 3)) is None
    assert counted.spend(rows(4, 5, 6)) == "distinct_rows_per_day"
    assert counted.distinct_today == 3
    assert counted.spend(rows(1, 2, 3, 4, 99)) is None
    assert counted.spend(rows(0)) == "distinct_rows_per_day"
    assert counted.spend(rows(99)) is None


def test_a_restart_continues_the_count_and_a_new_day_starts_at_zero(tmp_path: Path) -> None:
    assert quota(tmp_path).spend(rows(1, 2, 3, 4, 5)) is None
    again = quota(tmp_path)
    assert again.spend(rows(6)) == "distinct_rows_per_day"
    assert again.spend(rows(5)) is None
    assert quota(tmp_path, day=4.0).spend(rows(6)) is None
    # A clock that is set back does not give a day again.
    assert quota(tmp_path, day=3.0).distinct_today == 1


def test_a_day_that_ends_while_it_runs_resets_the_count(tmp_path: Path) -> None:
    now = [3.0 * DAY_S]
    counted = Quota(tmp_path, 100, "a", distinct_rows_per_day=2, clock=lambda: now[0])
    assert counted.spend(rows(1, 2)) is None
    assert counted.spend(rows(3)) == "distinct_rows_per_day"
    now[0] += DAY_S
    assert counted.spend(rows(3)) is None
    assert counted.distinct_today == 1


def test_another_alignment_on_the_same_day_carries_the_count_over(tmp_path: Path) -> None:
    assert quota(tmp_path).spend(rows(1, 2, 3)) is None
    other = quota(tmp_path, identity="b")
    assert other.distinct_today == 3
    assert other.spend(rows(1, 2)) is None
    assert quota(tmp_path).distinct_today == 5  # and back again: numbers mean other rows


def test_a_killed_process_loses_no_count(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    again = Quota(tmp_path, 100, "a", distinct_rows_per_day=9, clock=lambda: 0.0)
    assert again.distinct_today == 7


def test_rows_per_second_are_a_rate_that_one_ask_may_overdraw(tmp_path: Path) -> None:
    now = [0.0]
    counted = Quota(tmp_path, 100, "a", rows_per_second=10, monotonic=lambda: now[0])
    assert counted.spend(np.arange(25)) is None
    assert counted.spend(rows(1)) == "rows_per_second"
    now[0] = 1.4
    assert counted.spend(rows(1)) == "rows_per_second"
    now[0] = 1.6
    assert counted.spend(rows(1)) is None
    assert not (tmp_path / QUOTA_FILE).exists()  # nothing to remember


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 64, b"celuquo1" + b"\xff" * 80])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / QUOTA_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match="delete it to start counting"):
        quota(tmp_path)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    quota(tmp_path).spend(rows(1))
    with (tmp_path / QUOTA_FILE).open("ab") as file:
        file.write(b"1")
    with pytest.raises(ConfigError, match="damaged"):
        quota(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="distinct_rows_per_day"):
        quota(tmp_path / "file" / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
