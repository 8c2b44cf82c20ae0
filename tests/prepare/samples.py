"""Raw rows for the tests of preparation, and the stores made from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.columns import Category, Number
from celu.config.schema import RawSchema, Split
from celu.data.tags import held_out, make_tags
from celu.prepare import delimited, parquet, spill
from celu.prepare.encoders import statistics
from celu.prepare.pipeline import Report, Target, prepare

ROWS = 200
SPLIT = Split(seed=3, test=0.25)
SCHEMA = RawSchema(
    id="id",
    label="y",
    split=SPLIT,
    numbers={
        "plain": Number(),
        "log": Number(log=True, missing=0.0),
        "scaled": Number(missing=-2.5, standardise=True),
    },
    categories={"hash": Category(buckets=7), "word": Category(vocabulary=3, min_count=2)},
)


def rows(num_rows: int = ROWS, first: int = 0, seed: int = 5) -> list[dict[str, str]]:
    random = np.random.default_rng(seed)
    made = []
    for row in range(first, first + num_rows):
        made.append(
            {
                "id": f"user-{row}",
                "y": str(row % 2),
                "plain": repr(float(random.normal())),
                "log": "" if row % 5 == 0 else str(int(random.integers(-3, 50))),
                "scaled": "" if row % 7 == 0 else repr(float(random.normal(50, 3))),
                "hash": "" if row % 11 == 0 else f"h{int(random.integers(30))}",
                "word": "" if row % 9 == 0 else f"w{int(random.integers(6))}",
            }
        )
    return made


def text(some: Sequence[dict[str, str]], delimiter: str = ",", names: bool = True) -> str:
    lines = [delimiter.join(row.values()) for row in some]
    return "\n".join([*([delimiter.join(some[0])] if names else []), *lines]) + "\n"


def csv(folder: Path, some: Sequence[dict[str, str]], name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text(some))
    return path


def make(source: Path, declared: RawSchema, out: Path) -> Report:
    [report] = prepare([source], [Target(declared, out)])
    return report


def read(store: Path, part: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = pq.read_table(store / f"{part}.parquet").to_pylist()
    return made


def both(store: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for part in ("train", "test") for row in read(store, part)}


def contents(store: Path) -> tuple[pa.Table, pa.Table, str]:
    train, test = (pq.read_table(store / f"{part}.parquet") for part in ("train", "test"))
    return train, test, (store / "schema.json").read_text()


def in_test(row_id: str, split: Split = SPLIT) -> bool:
    return bool(held_out(make_tags([row_id], split.seed), split.test)[0])


@contextmanager
def small_blocks(block: int, joined: int, bucket: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK_BYTES", block)
        patch.setattr(delimited, "BLOCKS_JOINED", joined)
        patch.setattr(delimited, "PIECE_BYTES", block * joined)
        patch.setattr(parquet, "PARQUET_ROWS", block // 50)
        patch.setattr(spill, "BUCKET_BYTES", bucket)
        patch.setattr(statistics, "_WINDOW", 64)
        yield


def as_parquet(folder: Path, raws: Sequence[dict[str, str]], name: str = "rows.parquet") -> Path:
    columns: dict[str, Any] = {key: [row[key] or None for row in raws] for key in raws[0]}
    for key in ("plain", "log", "scaled"):
        columns[key] = pa.array([None if v is None else float(v) for v in columns[key]])
    columns["y"] = pa.array([int(v) for v in columns["y"]], pa.int8())
    columns["hash"] = pa.array(columns["hash"]).dictionary_encode()
    pq.write_table(pa.table(columns), folder / name, row_group_size=70)
    return folder / name
