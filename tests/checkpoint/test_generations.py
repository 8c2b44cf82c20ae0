"""Checkpoints on disk: only undamaged ones are used, and a failed write harms no earlier one."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from celu.checkpoint.disk import Disk, RealDisk
from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity, read_identity, write_identity
from celu.checkpoint.tensors import load_tensors, serialize_tensors
from celu.checkpoint.writer import BackgroundWriter, InlineWriter
from celu.errors import CheckpointError
from checkpoint.disks import FailingDisk, QuickDisk

IDENTITY = RunIdentity("0123456789abcdef" * 2, {"seed": 1, "lr": 0.03, "choices": ""})


def snapshot(round_: int) -> Snapshot:
    return Snapshot(round_, {"w": torch.full((2,), float(round_))}, {"n": round_})


def opened(folder: Path, disk: Disk | None = None, start: int = 10**6) -> Checkpoints:
    checkpoints = Checkpoints(folder, disk or QuickDisk(), InlineWriter())
    checkpoints.available_rounds()
    checkpoints.start(IDENTITY, start)
    return checkpoints


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with checkpoints of rounds 5 and 10."""
    checkpoints = opened(tmp_path)
    for round_ in (5, 10):
        checkpoints.save(snapshot(round_), 4)
    return tmp_path


def test_a_checkpoint_loads_as_it_was_saved(two: Path) -> None:
    checkpoints = Checkpoints(two)
    assert checkpoints.scan() == (IDENTITY, [0, 5, 10])
    loaded = checkpoints.load(10)
    assert loaded.state == {"n": 10} and loaded.round == 10
    assert loaded.tensors["w"].tolist() == [10.0, 10.0]


def test_sha256sum_accepts_the_checksums(two: Path) -> None:
    folder = two / "checkpoints" / "round-00000010"
    ran = subprocess.run(["sha256sum", "-c", "checksums"], cwd=folder, check=False)
    assert ran.returncode == 0


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "checksums"])
def test_every_flipped_byte_and_every_truncation_is_detected(two: Path, name: str) -> None:
    path = two / "checkpoints" / "round-00000010" / name
    data = path.read_bytes()
    checkpoints = Checkpoints(two, QuickDisk())
    for at in range(len(data)):
        for damaged in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            path.write_bytes(damaged)
            assert checkpoints.available_rounds() == [0, 5], at
            assert list(checkpoints.damaged) == [10]
    with pytest.raises(CheckpointError, match="previous one"):
        checkpoints.load(10)
    path.unlink()
    assert checkpoints.available_rounds() == [0, 5]
    path.mkdir()
    assert checkpoints.available_rounds() == [0, 5]


def test_a_damaged_run_json_is_recovered_from_a_checkpoint(two: Path) -> None:
    path = two / "run.json"
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            path.write_bytes(damaged)
            assert read_identity(two, QuickDisk()) in (None, IDENTITY)
    assert Checkpoints(two).scan()[0] == IDENTITY
    path.unlink()
    assert Checkpoints(two).scan()[0] == IDENTITY


def test_foreign_files_in_the_folder_are_ignored(two: Path) -> None:
    folder = two / "checkpoints"
    (folder / "round-00000010" / "notes.txt").write_text("mine")
    (folder / "round-00000007").write_text("a file")
    (folder / "round-00000008").mkdir()
    (folder / "round-x").mkdir()
    (folder / "round-000000009").mkdir()
    (folder / ".round-00000011.partial").mkdir()
    checkpoints = Checkpoints(two, QuickDisk(), InlineWriter())
    assert checkpoints.available_rounds() == [0, 5, 10]
    assert sorted(checkpoints.damaged) == [7, 8]
    checkpoints.start(IDENTITY, 10)
    left = sorted(p.name for p in folder.iterdir() if not p.name.startswith("discarded-"))
    assert left == ["round-000000009", "round-00000005", "round-00000010", "round-x"]


def test_a_checkpoint_under_another_rounds_name_is_not_used(two: Path) -> None:
    folder = two / "checkpoints"
    shutil.copytree(folder / "round-00000010", folder / "round-00000012")
    assert Checkpoints(two).available_rounds() == [0, 5, 10]


def test_a_checkpoint_of_another_run_is_not_used(two: Path) -> None:
    write_identity(two, QuickDisk(), RunIdentity("f" * 32, IDENTITY.contract))
    checkpoints = Checkpoints(two)
    assert (
        checkpoints.available_rounds() == [0]
        and checkpoints.damaged[10] == "it belongs to another run"
    )


def names(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "checkpoints").iterdir())


def test_resuming_sets_newer_checkpoints_aside_until_training_has_passed_them(two: Path) -> None:
    checkpoints = opened(two, start=5)
    assert checkpoints.available_rounds() == [0, 5] and checkpoints.superseded_rounds() == [10]
    assert names(two) == ["round-00000005", "superseded-00000010"]
    checkpoints.save(snapshot(8), 4)
    assert names(two) == ["round-00000005", "round-00000008", "superseded-00000010"]
    checkpoints.save(snapshot(10), 4)
    assert names(two) == ["round-00000005", "round-00000008", "round-00000010"]


def test_resuming_twice_from_an_earlier_round_replaces_what_was_set_aside(two: Path) -> None:
    for start in (5, 0):
        checkpoints = opened(two, start=start)
        checkpoints.save(snapshot(7), 4)
    assert names(two) == ["round-00000007", "superseded-00000010"]


def test_a_damaged_checkpoint_is_set_aside_and_not_deleted(two: Path) -> None:
    (two / "checkpoints" / "round-00000010" / "state.json").write_text("{}")
    opened(two)
    assert names(two) == ["discarded-00000010", "round-00000005"]


def test_restarting_from_a_round_gives_up_the_newer_ones_and_needs_its_checkpoint(
    two: Path,
) -> None:
    with pytest.raises(CheckpointError, match="restart from round 7; expected one of 0, 5, 10"):
        Checkpoints(two, QuickDisk()).restart_from(7)
    opened(two, start=5)
    checkpoints = Checkpoints(two, QuickDisk())
    checkpoints.restart_from(0)
    assert checkpoints.scan() == (IDENTITY, [0]) and checkpoints.superseded_rounds() == []
    assert names(two) == ["discarded-00000005", "discarded-00000010"]
    Checkpoints(two / "new", QuickDisk()).restart_from(0)


def test_only_the_newest_generations_are_retained(tmp_path: Path) -> None:
    checkpoints = opened(tmp_path)
    for round_ in range(1, 9):
        checkpoints.save(snapshot(round_), 3)
    assert checkpoints.available_rounds() == [0, 6, 7, 8]


@pytest.mark.parametrize("permanent", [True, False], ids=["a full disk", "one failure"])
def test_earlier_checkpoints_survive_a_failure_at_any_write(
    tmp_path: Path, permanent: bool
) -> None:
    count = FailingDisk(10**9, permanent=False)
    opened(tmp_path / "count", count).save(snapshot(4), 2)
    failed = 0
    for fails_at in range(1, 40):
        folder = tmp_path / str(fails_at)
        before = opened(folder)
        for round_ in (1, 2, 3):
            before.save(snapshot(round_), 2)
        disk = FailingDisk(fails_at, permanent=permanent)
        try:
            opened(folder, disk).save(snapshot(4), 2)
        except CheckpointError as error:
            failed += 1
            assert "No space left" in str(error) and "start again" in str(error)
        after = Checkpoints(folder, QuickDisk(), InlineWriter())
        identity, rounds = after.scan()
        assert identity == IDENTITY
        assert rounds in ([0, 2, 3], [0, 3, 4], [0, 2, 3, 4]) and not after.damaged
        assert after.load(3).tensors["w"].tolist() == [3.0, 3.0]
        after.start(IDENTITY, rounds[-1])  # and the run can resume
        after.save(snapshot(9), 2)
        assert after.available_rounds()[-1] == 9
    assert failed >= count.calls


def test_the_real_disk_saves_and_a_failed_write_is_reported(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, RealDisk())
    checkpoints.start(IDENTITY, 0)
    checkpoints.save(snapshot(1), 2)
    checkpoints.save(snapshot(2), 2)
    checkpoints.flush()
    assert checkpoints.available_rounds() == [0, 1, 2]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        Checkpoints(tmp_path / "file", RealDisk()).start(IDENTITY, 0)


def test_a_failure_in_the_background_is_raised_by_the_next_save_or_flush(tmp_path: Path) -> None:
    for raised_by in ("save", "flush"):
        checkpoints = Checkpoints(tmp_path / raised_by, QuickDisk(), BackgroundWriter())
        checkpoints.start(IDENTITY, 0)
        shutil.rmtree(tmp_path / raised_by / "checkpoints")
        (tmp_path / raised_by / "checkpoints").write_text("in the way")
        checkpoints.save(snapshot(1), 2)
        with pytest.raises(CheckpointError, match="checkpoint of round 1"):
            checkpoints.save(snapshot(2), 2) if raised_by == "save" else checkpoints.flush()


def test_the_background_writer_runs_jobs_in_order() -> None:
    writer, done = BackgroundWriter(), list[int]()
    for job in range(5):
        writer.submit(lambda job=job: done.append(job))  # type: ignore[misc]
    writer.flush()
    assert done == [0, 1, 2, 3, 4]


def test_waiting_for_a_hanging_disk_ends_at_the_timeout() -> None:
    answers, writer = threading.Event(), BackgroundWriter(timeout_s=0.05)
    writer.submit(lambda: assert_true(answers.wait(60)))
    with pytest.raises(CheckpointError, match=r"within 0\.05 s"):
        writer.submit(lambda: None)
    answers.set()


def assert_true(value: bool) -> None:
    assert value


def test_tensors_of_every_dtype_and_shape_round_trip() -> None:
    tensors = {
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "bool": torch.tensor([True, False]),
        "bf16": torch.randn(3, 2).bfloat16(),
        "long": torch.arange(5),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "transposed": torch.randn(3, 4).T,
        "double": torch.randn(2, dtype=torch.float64),
    }
    loaded = load_tensors(b"".join(bytes(part) for part in serialize_tensors(tensors)))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name
        assert loaded[name].data_ptr() % 16 == 0
    with pytest.raises(CheckpointError, match="complex64"):
        list(serialize_tensors({"c": torch.zeros(1, dtype=torch.complex64)}))
    with pytest.raises(ValueError, match="safetensors"):
        load_tensors(b"no such thing")


def test_the_thread_of_a_background_writer_ends_with_its_job() -> None:
    # A party makes a writer for each session, and a session ends whenever a peer restarts.
    writers = [BackgroundWriter() for _ in range(20)]
    threads: list[threading.Thread] = []
    for writer in writers:
        writer.submit(lambda: threads.append(threading.current_thread()))
        writer.flush()
    assert len(threads) == 20
    for thread in threads:
        assert thread is not threading.current_thread()
        thread.join(60)
        assert not thread.is_alive()
