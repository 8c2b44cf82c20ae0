"""A crafted safetensors file is refused by name, although its checksum is right."""

from __future__ import annotations

import hashlib
import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import celu
from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.checkpoint.tensors import load_tensors, serialize_tensors
from celu.checkpoint.writer import InlineWriter
from celu.errors import CheckpointError
from checkpoint.disks import QuickDisk
from federation import federation

MAX_MIB = 64


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file(header: object, data: bytes = bytes(8), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


ENTRY = json.dumps(entry()).encode()
HOSTILE = {
    "nothing": b"",
    "a part of the length": b"\x01",
    "a header of 2^62 bytes": file({}, length=2**62),
    "a header of 2^64 - 1 bytes": file({}, length=2**64 - 1),
    "a header of 100 MB that is not there": file({}, length=100_000_000),
    "a header that is no object": file([]),
    "a header of many levels": file(b'{"a":' + b"[" * 100_000),
    "a header that is not UTF-8": file(b'{"\xff": 1}'),
    "overlapping tensors": file({"a": entry(), "b": entry()}),
    "a gap": file({"a": entry(), "b": entry(offsets=[16, 24])}, bytes(24)),
    "reversed offsets": file({"a": entry(offsets=[8, 0])}),
    "negative offsets": file({"a": entry(offsets=[-8, 0])}),
    "offsets beyond the end": file({"a": entry(shape=[2**40], offsets=[0, 2**42])}),
    "bytes after the end": file({"a": entry()}, bytes(9)),
    "a name that occurs twice": file(b'{"a":' + ENTRY + b',"a":' + ENTRY + b"}"),
    "a type that occurs twice": file(b'{"a":{"dtype":"I64",' + ENTRY[1:] + b"}"),
    "a negative dimension": file({"a": entry(shape=[-2])}),
    "a dimension that is no integer": file({"a": entry(shape=[2.0])}),
    "2^63 times 0": file({"a": entry(shape=[2**63, 0], offsets=[0, 0])}, b""),
    "0 times 2^80": file({"a": entry(shape=[0, 2**40, 2**40], offsets=[0, 0])}, b""),
    "2^62 elements": file({"a": entry(shape=[2**62], offsets=[0, 0])}, b""),
    "2^64 elements, which is 0 in 64 bits": file({"a": entry(shape=[2**32] * 2)}),
    "100,000 dimensions": file({"a": entry(shape=[1] * 100_000 + [2])}),
    "a type that torch does not have": file({"a": entry("F8_E8M0", [8])}),
    "a type of 4 bits": file({"a": entry("F4", [16])}),
    "a type that we do not write": file({"a": entry("C64", [1])}),
    "an unknown type": file({"a": entry("X99")}),
    "a type that is a list": file({"a": entry(["F32"])}),
    "booleans other than 0 and 1": file({"a": entry("BOOL", [8])}, b"\x02" * 8),
}


def write_generation(folder: Path, tensors: bytes) -> None:
    """Replace the tensors of a checkpoint, with the right checksums."""
    (folder / "tensors.safetensors").write_bytes(tensors)
    names = ("tensors.safetensors", "state.json")
    sums = [f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    (folder / "checksums").write_text("".join(sums))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    """A folder with a checkpoint of round 5."""
    made = Checkpoints(tmp_path, QuickDisk(), InlineWriter())
    made.start(RunIdentity("ab" * 16, {}), 0)
    made.save(Snapshot(5, {"w": torch.zeros(2)}, {}), 4)
    return made


@pytest.mark.parametrize("what", HOSTILE)
def test_a_crafted_file_is_refused_by_name_and_costs_no_memory(
    tmp_path: Path, checkpoints: Checkpoints, what: str
) -> None:
    write_generation(tmp_path / "checkpoints" / "round-00000005", HOSTILE[what])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"round-00000005: the checkpoint is damaged"):
        checkpoints.load(5)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MAX_MIB * 1024


Change = Callable[[dict[str, Tensor]], None]


def first(tensors: dict[str, Tensor], prefix: str) -> str:
    return next(name for name in tensors if name.startswith(prefix))


def fill(prefix: str, value: float) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[first(tensors, prefix)].fill_(value)

    return change


def replace(prefix: str, tensor: Tensor) -> Change:
    return lambda tensors: tensors.__setitem__(first(tensors, prefix), tensor)


@pytest.mark.parametrize(
    ("party", "change", "error"),
    [
        ("host", fill("weights.", math.nan), "the weights contain NaN or Inf"),
        ("guest", fill("weights.", math.inf), "the weights contain NaN or Inf"),
        ("host", fill("optimizer.", math.nan), "the optimizer's state contain NaN or Inf"),
        ("host", replace("weights.", torch.zeros(2, 0)), "expected torch.float32 of"),
        ("host", replace("table.", torch.zeros(3, dtype=torch.int8)), "expected torch.float32 of"),
        ("host", replace("in_flight.", torch.zeros(64, 8).double()), "in_flight.*expected"),
        ("host", replace("in_flight.", torch.zeros(64, 1)), "in_flight.*expected"),
        ("host", replace("similarity", torch.zeros(())), "similarity: expected one value per row"),
        ("host", replace("similarity", torch.zeros(0)), "similarity: expected one value per row"),
        ("host", lambda tensors: tensors.update({"\x1b[2J": torch.zeros(1)}), r"\?\[2J"),
    ],
)
def test_a_crafted_checkpoint_is_refused_before_a_step(
    tmp_path: Path, party: str, change: Change, error: str
) -> None:
    def train() -> celu.Result:
        fed = federation(rounds=8, checkpoint={"every": 4}, method={"depth": 2, "W": 3, "R": 2})
        folders = {
            n: Checkpoints(tmp_path / n, QuickDisk(), InlineWriter()) for n in ("guest", "host")
        }
        return celu.simulate(fed.job, fed.guest, fed.hosts, checkpoints=folders)

    train()
    for name in ("guest", "host"):  # as if the run had been stopped after round 4
        for path in (tmp_path / name / "checkpoints").iterdir():
            if path.name != "round-00000004":
                for inner in path.iterdir():
                    inner.unlink()
                path.rmdir()
    folder = tmp_path / party / "checkpoints" / "round-00000004"
    tensors = load_tensors((folder / "tensors.safetensors").read_bytes())
    change(tensors)
    write_generation(folder, b"".join(map(bytes, serialize_tensors(tensors))))
    with pytest.raises(CheckpointError, match=error):
        train()
