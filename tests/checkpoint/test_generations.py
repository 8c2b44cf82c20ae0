"""What is on disk: held only where every byte is as it was written."""

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
from celu.checkpoint.tensors import parts_of, tensors_of
from celu.checkpoint.writer import Background, Inline
from celu.errors import CheckpointError
from checkpoint.disks import FailingDisk, QuickDisk

IDENTITY = RunIdentity("0123456789abcdef" * 2, {"seed": 1, "lr": 0.03, "choices": ""})


def snapshot(round_: int) -> Snapshot:
    return Snapshot(round_, {"w": torch.full((2,), float(round_))}, {"n": round_})


def opened(folder: Path, disk: Disk | None = None, begin: int = 10**6) -> Checkpoints:
    found = Checkpoints(folder, disk or QuickDisk(), Inline())
    found.held()
    found.begin(IDENTITY, begin)
    return found


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with generations 5 and 10."""
    kept = opened(tmp_path)
    for round_ in (5, 10):
        kept.keep(snapshot(round_), 4)
    return tmp_path


def test_what_was_kept_comes_back(two: Path) -> None:
    kept = Checkpoints(two)
    assert kept.find() == (IDENTITY, [0, 5, 10])
    loaded = kept.load(10)
    assert loaded.state == {"n": 10} and loaded.round == 10
    assert loaded.tensors["w"].tolist() == [10.0, 10.0]


def test_sha256sum_agrees(two: Path) -> None:
    folder = two / "checkpoints" / "round-00000010"
    ran = subprocess.run(["sha256sum", "-c", "checksums"], cwd=folder, check=False)
    assert ran.returncode == 0


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "checksums"])
def test_a_flip_of_any_byte_and_a_cut_anywhere_are_found(two: Path, name: str) -> None:
    path = two / "checkpoints" / "round-00000010" / name
    data = path.read_bytes()
    kept = Checkpoints(two, QuickDisk())
    for at in range(len(data)):
        for damaged in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            path.write_bytes(damaged)
            assert kept.held() == [0, 5], at
            assert list(kept.damaged) == [10]
    with pytest.raises(CheckpointError, match="one before"):
        kept.load(10)
    path.unlink()
    assert kept.held() == [0, 5]
    path.mkdir()
    assert kept.held() == [0, 5]


def test_any_damage_to_the_identity_is_made_good_by_the_generations(two: Path) -> None:
    path = two / "run.json"
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            path.write_bytes(damaged)
            assert read_identity(two, QuickDisk()) in (None, IDENTITY)
    assert Checkpoints(two).find()[0] == IDENTITY
    path.unlink()
    assert Checkpoints(two).find()[0] == IDENTITY


def test_what_does_not_belong_there_does_no_harm(two: Path) -> None:
    folder = two / "checkpoints"
    (folder / "round-00000010" / "notes.txt").write_text("mine")
    (folder / "round-00000007").write_text("a file")
    (folder / "round-00000008").mkdir()
    (folder / "round-x").mkdir()
    (folder / "round-000000009").mkdir()
    (folder / ".round-00000011.partial").mkdir()
    kept = Checkpoints(two, QuickDisk(), Inline())
    assert kept.held() == [0, 5, 10]
    assert sorted(kept.damaged) == [7, 8]
    kept.begin(IDENTITY, 10)
    left = sorted(p.name for p in folder.iterdir())
    assert left == ["round-000000009", "round-00000005", "round-00000010", "round-x"]


def test_a_generation_under_another_rounds_name_is_not_held(two: Path) -> None:
    folder = two / "checkpoints"
    shutil.copytree(folder / "round-00000010", folder / "round-00000012")
    assert Checkpoints(two).held() == [0, 5, 10]


def test_a_generation_of_another_run_is_not_held(two: Path) -> None:
    write_identity(two, QuickDisk(), RunIdentity("f" * 32, IDENTITY.contract))
    kept = Checkpoints(two)
    assert kept.held() == [0] and kept.damaged[10] == "it is of another run"


def test_going_on_drops_what_is_newer(two: Path) -> None:
    kept = opened(two, begin=5)
    assert kept.held() == [0, 5]
    assert sorted(p.name for p in (two / "checkpoints").iterdir()) == ["round-00000005"]


def test_the_newest_so_many_stay(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    for round_ in range(1, 9):
        kept.keep(snapshot(round_), 3)
    assert kept.held() == [0, 6, 7, 8]


@pytest.mark.parametrize("for_good", [True, False], ids=["a full disk", "one failure"])
def test_whatever_fails_the_generations_before_are_intact(tmp_path: Path, for_good: bool) -> None:
    count = FailingDisk(10**9, for_good=False)
    opened(tmp_path / "count", count).keep(snapshot(4), 2)
    failed = 0
    for fails_at in range(1, 40):
        folder = tmp_path / str(fails_at)
        before = opened(folder)
        for round_ in (1, 2, 3):
            before.keep(snapshot(round_), 2)
        disk = FailingDisk(fails_at, for_good=for_good)
        try:
            opened(folder, disk).keep(snapshot(4), 2)
        except CheckpointError as error:
            failed += 1
            assert "No space left" in str(error) and "start again" in str(error)
        after = Checkpoints(folder, QuickDisk(), Inline())
        identity, held = after.find()
        assert identity == IDENTITY
        assert held in ([0, 2, 3], [0, 3, 4], [0, 2, 3, 4]) and not after.damaged
        assert after.load(3).tensors["w"].tolist() == [3.0, 3.0]
        after.begin(IDENTITY, held[-1])  # and it goes on
        after.keep(snapshot(9), 2)
        assert after.held()[-1] == 9
    assert failed >= count.calls


def test_the_real_disk_keeps_and_says_what_it_cannot(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, RealDisk())
    kept.begin(IDENTITY, 0)
    kept.keep(snapshot(1), 2)
    kept.keep(snapshot(2), 2)
    kept.settle()
    assert kept.held() == [0, 1, 2]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        Checkpoints(tmp_path / "file", RealDisk()).begin(IDENTITY, 0)


def test_a_failure_in_the_background_shows_at_the_next_and_at_the_end(tmp_path: Path) -> None:
    for surfaces_at in ("keep", "settle"):
        kept = Checkpoints(tmp_path / surfaces_at, QuickDisk(), Background())
        kept.begin(IDENTITY, 0)
        shutil.rmtree(tmp_path / surfaces_at / "checkpoints")
        (tmp_path / surfaces_at / "checkpoints").write_text("in the way")
        kept.keep(snapshot(1), 2)
        with pytest.raises(CheckpointError, match="hold round 1"):
            kept.keep(snapshot(2), 2) if surfaces_at == "keep" else kept.settle()


def test_jobs_are_done_in_order() -> None:
    writer, done = Background(), list[int]()
    for job in range(5):
        writer.do(lambda job=job: done.append(job))  # type: ignore[misc]
    writer.settle()
    assert done == [0, 1, 2, 3, 4]


def test_a_disk_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    answers, writer = threading.Event(), Background(longest_s=0.05)
    writer.do(lambda: assert_true(answers.wait(60)))
    with pytest.raises(CheckpointError, match=r"within 0\.05 s"):
        writer.do(lambda: None)
    answers.set()


def assert_true(value: bool) -> None:
    assert value


def test_tensors_of_every_type_and_shape_come_back() -> None:
    tensors = {
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "bool": torch.tensor([True, False]),
        "bf16": torch.randn(3, 2).bfloat16(),
        "long": torch.arange(5),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "turned": torch.randn(3, 4).T,
        "double": torch.randn(2, dtype=torch.float64),
    }
    loaded = tensors_of(b"".join(bytes(part) for part in parts_of(tensors)))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name
        assert loaded[name].data_ptr() % 16 == 0
    with pytest.raises(CheckpointError, match="complex64"):
        list(parts_of({"c": torch.zeros(1, dtype=torch.complex64)}))
    with pytest.raises(ValueError, match="safetensors"):
        tensors_of(b"no such thing")
