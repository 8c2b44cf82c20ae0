"""Checkpoints with a file of each rank: any number of ranks reads what any number wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.checkpoint.shards import WHOLE, Share
from celu.checkpoint.writer import InlineWriter
from celu.errors import CheckpointError
from checkpoint.disks import QuickDisk

IDENTITY = RunIdentity("0123456789abcdef" * 2, {"seed": 1})
ATTEMPT, ROWS = "ab" * 16, 11
TABLE = torch.arange(ROWS * 2.0).reshape(ROWS, 2)
DENSE, SUMS = torch.tensor([1.0, 2.0]), -TABLE


def share(rank: int, size: int, rows: int = ROWS) -> Share:
    return Share(rank, size, {"weights.table": rows, "optimizer.0.1.": rows}) if size > 1 else WHOLE


def tensors(rank: int, size: int) -> dict[str, Tensor]:
    return {
        "weights.dense": DENSE,
        "weights.table": TABLE[rank::size],
        "optimizer.0.1.sum": SUMS[rank::size],
        "optimizer.0.1.step": torch.tensor(3.0),  # a number: every rank has it
    }


def opened(folder: Path, is_broken: bool = False) -> Checkpoints:
    checkpoints = Checkpoints(folder, QuickDisk(), InlineWriter())
    checkpoints.hand_over(ATTEMPT, lambda: is_broken)
    return checkpoints


def write(folder: Path, size: int, round_: int = 5) -> Checkpoints:
    first = opened(folder)
    first.start(IDENTITY, round_)
    for rank in range(1, size):  # before the first, which waits for them
        opened(folder).give(Snapshot(round_, tensors(rank, size), {}, share(rank, size)))
    first.save(Snapshot(round_, tensors(0, size), {"n": 1}, share(0, size)), 3)
    return first


@pytest.mark.parametrize("written", [1, 2, 3, 4])
@pytest.mark.parametrize("read", [1, 2, 4])
def test_any_number_of_ranks_reads_its_rows(tmp_path: Path, written: int, read: int) -> None:
    write(tmp_path, written)
    assert opened(tmp_path).available_rounds() == [0, 5]
    for rank in range(read):
        found = opened(tmp_path).load(5, share(rank, read)).tensors
        expected = tensors(rank, read)
        assert found.keys() == expected.keys()
        assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_a_generation_has_a_file_of_each_rank_and_counts_once_all_are_there(
    tmp_path: Path,
) -> None:
    write(tmp_path, 2)
    files = {path.name for path in (tmp_path / "checkpoints" / "round-00000005").iterdir()}
    shards = {"shard-0-of-2.safetensors", "shard-1-of-2.safetensors"}
    assert files == {"tensors.safetensors", "state.json", "checksums"} | shards
    broken = opened(tmp_path, is_broken=True)
    broken.start(IDENTITY, 5)
    with pytest.raises(CheckpointError, match=r"rank 1 did not write its rows .* round 10"):
        broken.save(Snapshot(10, tensors(0, 2), {}, share(0, 2)), 3)
    assert opened(tmp_path).available_rounds() == [0, 5]


def test_files_of_an_earlier_attempt_are_removed_and_not_taken(tmp_path: Path) -> None:
    write(tmp_path, 2)
    earlier = opened(tmp_path)
    earlier.hand_over("cd" * 16, lambda: False)
    earlier.give(Snapshot(10, tensors(1, 2), {}, share(1, 2)))
    broken = opened(tmp_path, is_broken=True)
    with pytest.raises(CheckpointError, match="rank 1"):
        broken._identity = IDENTITY
        broken.save(Snapshot(10, tensors(0, 2), {}, share(0, 2)), 3)
    broken.start(IDENTITY, 5)
    assert not list((tmp_path / "checkpoints").glob(".shard-*"))


@pytest.mark.parametrize("change", ["flip", "truncate", "remove"])
def test_a_damaged_shard_is_found(tmp_path: Path, change: str) -> None:
    write(tmp_path, 2)
    path = tmp_path / "checkpoints" / "round-00000005" / "shard-1-of-2.safetensors"
    data = path.read_bytes()
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(data[:-1] + (bytes([data[-1] ^ 1]) if change == "flip" else b""))
    checkpoints = opened(tmp_path)
    assert checkpoints.available_rounds() == [0]
    assert list(checkpoints.damaged) == [5]


@pytest.mark.parametrize("written", [1, 2])
def test_a_table_of_another_size_is_refused_by_name(tmp_path: Path, written: int) -> None:
    write(tmp_path, written)
    with pytest.raises(CheckpointError, match=r"\.sum: expected 12 rows in all, got 11"):
        opened(tmp_path).load(5, share(0, 2, rows=12))
