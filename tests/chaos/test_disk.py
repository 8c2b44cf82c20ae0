"""The simulated disk guarantees what a real disk does, and no more."""

from __future__ import annotations

import copy
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from celu.checkpoint.disk import Disk, RealDisk
from chaos.disk import Interruption, SimDisk

RUN = Path("/run")


def after_power_cuts(disk: SimDisk, look: Callable[[SimDisk], object]) -> set[object]:
    """Every outcome of a power cut."""
    seen = set()
    for seed in range(100):
        cut = copy.deepcopy(disk)
        cut.cut_power(random.Random(seed))
        seen.add(look(cut))
    return seen


def content(path: Path) -> Callable[[SimDisk], bytes | None]:
    def look(disk: SimDisk) -> bytes | None:
        return disk.read(path) if path.name in disk.names(path.parent) else None

    return look


@pytest.fixture
def disk() -> SimDisk:
    """A disk with a durable empty folder."""
    disk = SimDisk()
    disk.make_folder(RUN)
    disk.sync_folder(Path("/"))
    return disk


def test_a_file_is_durable_once_its_folder_is_synced(disk: SimDisk) -> None:
    disk.write(RUN / "a", [b"12", b"34"])
    assert after_power_cuts(disk, content(RUN / "a")) == {None, b"1234"}
    disk.sync_folder(RUN)
    assert after_power_cuts(disk, content(RUN / "a")) == {b"1234"}


def test_a_rename_is_atomic(disk: SimDisk) -> None:
    disk.write(RUN / "a", [b"new"])
    disk.write(RUN / "b", [b"old"])
    disk.sync_folder(RUN)
    disk.rename(RUN / "a", RUN / "b")
    assert disk.read(RUN / "b") == b"new"
    both = after_power_cuts(disk, lambda d: (content(RUN / "a")(d), content(RUN / "b")(d)))
    assert both == {(b"new", b"old"), (None, b"new")}


def test_a_folder_cannot_replace_one_that_is_not_empty(disk: SimDisk) -> None:
    for name in "ab":
        disk.make_folder(RUN / name)
        disk.write(RUN / name / "file", [b"x"])
    with pytest.raises(OSError, match="not empty"):
        disk.rename(RUN / "a", RUN / "b")


def test_after_a_failed_sync_a_file_may_hold_any_prefix_even_after_another_sync(
    disk: SimDisk,
) -> None:
    disk.sync_fails = lambda: True
    with pytest.raises(OSError, match="Input/output"):
        disk.write(RUN / "a", [b"123"])
    assert disk.read(RUN / "a") == b"123"
    disk.sync_fails = lambda: False
    disk.sync_folder(RUN)
    assert after_power_cuts(disk, content(RUN / "a")) == {b"", b"1", b"12", b"123"}


def test_an_interrupted_write_is_done_in_part(disk: SimDisk) -> None:
    disk.interrupt = lambda operation: Interruption(OSError(errno.ENOSPC, "full"), 0.5)
    with pytest.raises(OSError, match="full"):
        disk.write(RUN / "a", [b"1234"])
    assert disk.read(RUN / "a") == b"12"


def test_a_removal_is_not_durable_before_a_sync(disk: SimDisk) -> None:
    disk.make_folder(RUN / "a")
    disk.write(RUN / "a" / "file", [b"x"])
    disk.sync_folder(RUN / "a")
    disk.sync_folder(RUN)
    disk.remove(RUN / "a")
    assert disk.names(RUN) == []
    seen = after_power_cuts(disk, lambda d: (*d.names(RUN), *d.names(RUN / "a")))
    assert seen == {("a", "file"), ("a",), ()}


def test_flip_bit_flips_one_bit_of_one_file_below_a_folder(disk: SimDisk) -> None:
    disk.make_folder(RUN / "data")
    disk.write(RUN / "data" / "a", [bytes(8)])
    disk.write(RUN / "b", [bytes(8)])
    assert disk.flip_bit(random.Random(1), "data") == "/run/data/a"
    assert disk.read(RUN / "b") == bytes(8)
    assert sum(byte.bit_count() for byte in disk.read(RUN / "data" / "a")) == 1
    assert disk.flip_bit(random.Random(1), "elsewhere") is None


@pytest.mark.parametrize("real", [True, False], ids=["real", "simulated"])
def test_without_faults_it_behaves_like_a_real_disk(real: bool, tmp_path: Path) -> None:
    disk: Disk = RealDisk() if real else SimDisk()
    here = tmp_path / "run"
    disk.make_folder(here / "deep")
    disk.make_folder(here / "deep")
    disk.write(here / "deep" / "a", [b"1", memoryview(b"2")])
    disk.write(here / "b", [b"3"])
    disk.write(here / "b", [b"4"])
    disk.sync_folder(here)
    assert disk.names(here) == ["b", "deep"]
    assert disk.names(here / "none") == []
    disk.rename(here / "deep", here / "deeper")
    assert disk.read(here / "deeper" / "a") == b"12"
    assert disk.read(here / "b") == b"4"
    for path in (here / "deep" / "a", here / "none"):
        with pytest.raises(FileNotFoundError):
            disk.read(path)
    with pytest.raises(FileNotFoundError):
        disk.write(here / "none" / "a", [b""])
    with pytest.raises(FileNotFoundError):
        disk.rename(here / "none", here / "some")
    disk.remove(here / "deeper")
    disk.remove(here / "deeper")
    disk.remove(here / "b")
    assert disk.names(here) == []


def test_an_appended_line_may_be_torn_by_a_power_cut(disk: SimDisk) -> None:
    disk.append(RUN / "log", b"1\n")
    disk.sync_folder(RUN)
    disk.append(RUN / "log", b"2\n")
    assert disk.read(RUN / "log") == b"1\n2\n"
    assert after_power_cuts(disk, content(RUN / "log")) == {b"", b"1", b"1\n", b"1\n2", b"1\n2\n"}
    disk.truncate(RUN / "log", 2)
    assert disk.read(RUN / "log") == b"1\n"


def test_an_interrupted_append_leaves_a_part_of_the_line(disk: SimDisk) -> None:
    disk.append(RUN / "log", b"1\n")
    disk.interrupt = lambda operation: Interruption(OSError(errno.ENOSPC, "full"), 0.5)
    with pytest.raises(OSError, match="full"):
        disk.append(RUN / "log", b"234\n")
    assert disk.read(RUN / "log") == b"1\n23"


def test_what_is_lost_does_not_return_after_a_power_cut(disk: SimDisk) -> None:
    disk.make_folder(RUN / "checkpoints")
    disk.write(RUN / "checkpoints" / "a", [b"1"])
    disk.sync_folder(RUN)
    disk.write(RUN / "b", [b"2"])
    disk.lose(RUN / "checkpoints")
    assert after_power_cuts(disk, lambda d: tuple(d.names(RUN))) == {(), ("b",)}


def test_damage_survives_a_power_cut(disk: SimDisk) -> None:
    disk.write(RUN / "a", [b"1234"])
    disk.sync_folder(RUN)
    disk.damage(RUN / "a", lambda data: data[:2])
    assert after_power_cuts(disk, content(RUN / "a")) == {b"12"}
