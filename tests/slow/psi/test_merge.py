"""`celu align --shard` at all parties and `--merge` write the files of one `celu align`.

The shards are aligned by the tasks of deploy/slurm/align.sbatch, here without Slurm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.psi import _TEMPLATE, _write_ids
from celu.config.templates import write_settings
from celu.data.shards import merge_shards
from celu.data.store import open_store
from celu.errors import AlignmentError, DataError
from celu.testing import align_parties, free_port, make_keys

NAMES = ["guest", "host"]
WAIT_S = 600.0
SCRIPT = Path(__file__).parents[3] / "deploy" / "slurm" / "align.sbatch"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def run_tasks(folder: Path, index: int, count: int) -> None:
    """What Slurm runs of an array 0-COUNT: the task of this index, at both parties."""
    task = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_ARRAY_TASK_MAX": str(count - 1)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shared = {**os.environ, **task, "PATH": path, "PORT": str(free_port() - index)}
    where = {"guest": {"ADDRESS": "127.0.0.1"}, "host": {"PEER": "guest=localhost"}}
    running = []
    for name in NAMES:
        with (folder / name / f"{index}.log").open("wb") as log:
            running.append(
                subprocess.Popen(
                    ["bash", str(SCRIPT)],
                    cwd=folder / name,
                    env={**shared, **where[name], "JOB": "../job.toml"},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    codes = [process.wait(WAIT_S) for process in running]
    logs = [(folder / name / f"{index}.log").read_text() for name in NAMES]
    assert codes == [0, 0], logs


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parties, aligned whole (`alignment.whole`), and in three shards that are not merged."""
    folder = tmp_path_factory.mktemp("parties")
    _write_ids(folder / "guest" / "store", [f"id {i}" for i in range(300)])
    _write_ids(folder / "host" / "store", [f"id {i}" for i in range(30, 530)])
    write_settings(folder, _TEMPLATE, port=free_port(), local=True, aligned=False)
    make_keys(folder, NAMES)
    job = folder / "job.toml"
    align_parties(folder, NAMES, job, timeout_s=WAIT_S)
    for name in NAMES:
        (folder / name / "alignment").rename(folder / name / "alignment.whole")
    for index in range(3):
        run_tasks(folder, index, 3)
    return folder


def test_merged_shards_are_the_whole_alignment_byte_for_byte(aligned: Path) -> None:
    printed = align_parties(aligned, NAMES, aligned / "job.toml", "--merge", timeout_s=WAIT_S)
    for name in NAMES:
        whole = files(aligned / name / "alignment.whole")
        assert files(aligned / name / "alignment") == whole
        assert json.loads(whole["alignment.json"])["rows"]["train"] > 0
        assert "as dummies" in printed[name]


def shards(aligned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(aligned / "guest" / ".alignment.shards", tmp_path / "shards"))


def test_missing_shards_are_named(aligned: Path, tmp_path: Path) -> None:
    folder, store = shards(aligned, tmp_path), open_store(aligned / "guest" / "store")
    shutil.rmtree(folder / "1-of-3")
    with pytest.raises(DataError, match="expected all 3 shards, got none for 1;"):
        merge_shards(tmp_path / "out", folder, store)
    shutil.copytree(folder / "0-of-3", folder / "0-of-5")
    with pytest.raises(DataError, match="got some of 3 and of 5"):
        merge_shards(tmp_path / "out", folder, store)
    with pytest.raises(DataError, match="expected aligned shards, got none"):
        merge_shards(tmp_path / "out", tmp_path / "nothing", store)
    assert not (tmp_path / "out").exists()


def test_wrong_and_damaged_shards_are_named(aligned: Path, tmp_path: Path) -> None:
    folder, store = shards(aligned, tmp_path), open_store(aligned / "guest" / "store")
    shutil.rmtree(folder / "1-of-3")
    shutil.copytree(folder / "0-of-3", folder / "1-of-3")
    with pytest.raises(DataError, match=r"expected shard 1/3; .* got another one"):
        merge_shards(tmp_path / "out", folder, store)
    file = folder / "2-of-3" / "train.rows"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    shutil.rmtree(folder / "1-of-3")
    shutil.copytree(aligned / "guest" / ".alignment.shards" / "1-of-3", folder / "1-of-3")
    with pytest.raises(DataError, match=r"expected shard 2/3; .* got a damaged file"):
        merge_shards(tmp_path / "out", folder, store)
    assert not (tmp_path / "out").exists()


def test_shards_of_another_store_or_of_other_sizes_are_named(aligned: Path, tmp_path: Path) -> None:
    folder, store = shards(aligned, tmp_path), open_store(aligned / "guest" / "store")
    _write_ids(tmp_path / "other", [f"id {i}" for i in range(1, 301)])
    with pytest.raises(AlignmentError, match="was aligned for another store"):
        merge_shards(tmp_path / "out", folder, open_store(tmp_path / "other"))
    file = folder / "2-of-3" / "shard.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, "peers": {"host": 501}}))
    with pytest.raises(AlignmentError, match=r"shard 2/3 .* another number of a peer's rows"):
        merge_shards(tmp_path / "out", folder, store)
