"""Mutated files of a party: settings, schemas, stores, alignments and checkpoints."""

from __future__ import annotations

import re
import shutil
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import torch

import celu
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import InlineWriter
from celu.config.job import read_job
from celu.config.party import read_party
from celu.config.schema import read_raw_schema
from celu.data.alignment import read_alignment, write_alignment
from celu.data.memory_map import open_datasets
from celu.data.store import open_store
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from stores import write_store

from .model_files import model_files
from .more_files import (
    Reader,
    alignment_files,
    certificate_files,
    privacy_files,
    raw_files,
    run_files,
    score_files,
)
from .values import mutated_body, mutated_bytes

JOB = """
seed = 1
batch_size = 8
rounds = 100
hosts = { host = { z_width = 3 } }
codec = "int8"
[method]
W = 5
R = { guest = 3, host = 1 }
[optimizer]
name = "sgd"
momentum = 0.5
[[choices]]
round = 0
W = 5
R = 1
depth = 2
codec = "fp32"
"""
PARTY = """
role = "guest"
name = "guest"
listen = "0.0.0.0:7443"
link = { mbps = 30.0, delay_ms = 1.5 }
[peers.host]
ca = "ca.pem"
[keys]
certificate = "guest.pem"
key = "guest.key"
[data]
store = "store"
aligned = true
inputs = { ids = ["c"] }
[model]
top = { use = "wdl", hidden = [4] }
loss = "binary"
"""
SCHEMA = """
id = "id"
label = "y"
split = { seed = 3, test = 0.25 }
[numbers.x]
missing = 0.0
[categories.c]
vocabulary = 10
min_count = 2
"""
TOML_VALUES = (
    "nan", "-inf", "1e999", "9" * 5000, "-1", "0", "0x7fffffffffffffff", "9223372036854775808",
    '""', '"\\u0000"', '"\\uD800"', '"../../x"', "[]", "{}", "[[]]", "true", "1979-05-27",
    "1979-99-99", "'''", "[" * 3000, "{a=" * 3000, '"auto"', '"' + "x" * 70000 + '"',
)  # fmt: skip
GENERATION = "checkpoints/round-00000002"


def _train(run: Path) -> celu.Result:
    """Run four rounds with a checkpoint after the second; resume if the folder has one."""
    torch.manual_seed(1)
    table = celu.Dataset({"numbers": torch.randn(16, 2)}, (torch.arange(16) % 2).float())
    bottom = Tower(3, {"numbers": 2}, {}, hidden=(4,))
    guest = celu.Guest(
        top=WideDeepTop([3]), loss=celu.LOSSES["binary"], train=table, test=table, bottom=bottom
    )
    job = celu.Job(batch_size=8, rounds=4, hosts={}, checkpoint={"every": 2})
    checkpoints = Checkpoints(run, writer=InlineWriter())
    return celu.simulate(job, guest, {}, checkpoints={job.guest: checkpoints})


def mutated_toml(random: Random, data: bytes) -> bytes:
    """Change values, keys and tables; drop or repeat lines; or mutate bytes."""
    if random.random() < 0.2:
        return mutated_bytes(random, data)
    lines = data.decode().splitlines()
    at = random.randrange(len(lines))
    what = random.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(random.randrange(len(lines)), lines[at])
    elif what == 2:
        lines.insert(at, random.choice(("[method", "a.b.c = 1", "[hosts.host]", "x = 1", "\0")))
    else:
        lines[at] = re.sub(r"(?<== ).*", lambda _: random.choice(TOML_VALUES), lines[at])
    return "\n".join(lines).encode()


def mutated_array(random: Random, data: bytes) -> bytes:
    """Mutate the header of an .npy file, or its bytes."""
    odd = (b"(9999999999999999999999,)", b"(50,", b"((", b"'|O'", b"[[" * 900, b"\\", b"(-1,)")
    if random.random() < 0.5:
        return re.sub(rb"\(\d+,\)|'<i8'", lambda _: random.choice(odd), data, count=1)
    if random.random() < 0.1:
        return b"PK\x03\x04" + data
    return mutated_bytes(random, data)


def make_files(folder: Path) -> list[Reader]:
    """Write a valid file of every kind into a folder; returns their readers."""
    for name, text in (("job.toml", JOB), ("party.toml", PARTY), ("schema.toml", SCHEMA)):
        (folder / name).write_text(text, encoding="utf-8")
    numbers = np.linspace(-1, 1, 60).astype(np.float32)
    codes = (np.arange(60) % 5).astype(np.int32)
    columns = {"x": numbers, "c": codes, "label": (np.arange(60) % 2).astype(np.float32)}
    store = write_store(folder / "store", columns, {"c": 5})
    rows = {"train": np.arange(50), "test": np.arange(0)}
    write_alignment(folder / "alignment", store, rows, peers={"host": 60}, common={"host": 50})

    def open_aligned(path: Path) -> object:
        store = open_store(path / "store")
        alignment = read_alignment(path / "alignment", store)
        shutil.rmtree(path / "store" / "columns", ignore_errors=True)
        inputs = {"ids": ["c"], "numbers": ["x"]}
        return open_datasets(store, inputs, label=True, alignment=alignment)

    def open_unaligned(path: Path) -> object:
        store = open_store(path / "store")
        return open_datasets(store, {"ids": ["c"]}, label=True)

    def resume(path: Path) -> object:
        with TemporaryDirectory() as scratch:
            generation = Path(scratch) / GENERATION
            shutil.copytree(path / "run" / GENERATION, generation)
            names = ("tensors.safetensors", "state.json")
            sums = [f"{sha256((generation / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
            # Valid checksums, or they would refuse the file before its reader sees it.
            (generation / "checksums").write_text("".join(sums), encoding="ascii")
            return _train(Path(scratch))

    _train(folder / "run")
    open_unaligned(folder)  # writes columns.json
    columns_json = next((folder / "store" / "columns").glob("*/columns.json")).relative_to(folder)
    return [
        Reader("job.toml", "job.toml", mutated_toml, lambda p: read_job(p / "job.toml").contract()),
        Reader("party.toml", "party.toml", mutated_toml, lambda p: read_party(p / "party.toml")),
        Reader(
            "schema.toml", "schema.toml", mutated_toml, lambda p: read_raw_schema(p / "schema.toml")
        ),
        Reader("columns.json", str(columns_json), mutated_body, open_unaligned),
        Reader("schema.json", "store/schema.json", mutated_body, open_aligned),
        Reader("alignment.json", "alignment/alignment.json", mutated_body, open_aligned),
        Reader("train.npy", "alignment/train.npy", mutated_array, open_aligned),
        Reader("test.npy", "alignment/test.npy", mutated_array, open_aligned),
        Reader("state.json", f"run/{GENERATION}/state.json", mutated_body, resume),
        Reader("tensors", f"run/{GENERATION}/tensors.safetensors", mutated_bytes, resume),
        Reader("train.parquet", "store/train.parquet", mutated_bytes, open_aligned),
        *run_files(folder),
        *raw_files(folder),
        *score_files(folder),
        *certificate_files(folder),
        *alignment_files(folder),
        *privacy_files(folder),
        *model_files(folder),
    ]  # fmt: skip
