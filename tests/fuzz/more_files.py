"""More files to mutate: run folders, rows, scores, certificates, the progress of an alignment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from celu.certs import make_authority, make_party
from celu.config.columns import Bag, Category, Date, Number
from celu.config.schema import RawSchema, Split
from celu.dashboard.live import open_runs
from celu.dashboard.metrics import metrics_text
from celu.metrics.names import Output
from celu.page.assemble import script_safe_json
from celu.prepare.draft import draft_schema
from celu.prepare.pipeline import Target, prepare
from celu.privacy.ledger import Release, read_label_key, read_ledger, spend
from celu.privacy.secret_key import LABELS, SecretKey
from celu.psi.state import VALUE_BYTES, ExchangeState
from celu.record.run import RunRecord
from celu.report.render import render
from celu.run_folder import RunFolder
from celu.scores.evaluation import evaluate
from celu.scores.file import ScoreWriter
from celu.scores.page import render as render_evaluation
from celu.transport.tls import Credentials, client_context, is_issued_for, server_context
from record.folders import events, write_run

from .values import mutated_body, mutated_bytes

ODD_CELLS = (
    b"", b"nan", b"inf", b"-1e999", b"9" * 400, b'"', b'""', b'"a\n,b"', b"\x00", b"\xff\xfe", b",",
    b"\r", b"0x10", b"1_0", b"true", b"user-1", b"\xe2\x80\xae", b"x" * 20_000,
)  # fmt: skip
RAW = RawSchema(
    id="id",
    label="y",
    split=Split(seed=3, test=0.25),
    numbers={"x": Number(log=True, missing=0.0, standardise=True)},
    categories={"c": Category(buckets=7), "w": Category(vocabulary=3, min_count=2)},
)
ALL_KINDS = RAW.model_copy(
    update={
        "numbers": {**RAW.numbers, "m": Number(missing="median", indicator=True)},
        "categories": {**RAW.categories, "q": Category(quantiles=4)},
        "dates": {"d": Date(parts=["year", "hour"], missing="mean", standardise=True)},
        "bags": {"b": Bag(separator="|", vocabulary=3, max_values=2)},
    }
)
NUM_ROWS = 24


@dataclass(frozen=True)
class Reader:
    """A file below a folder, how to mutate it, and celu's own reader of the folder."""

    name: str
    file: str
    mutate: Callable[[Random, bytes], bytes]
    read: Callable[[Path], object]


def mutated_lines(random: Random, data: bytes) -> bytes:
    """Change one line of JSON, or drop, repeat or cut lines."""
    lines = data.splitlines(keepends=True)
    at = random.randrange(len(lines)) if lines else 0
    what = random.randrange(6)
    if not lines or what == 0:
        return mutated_bytes(random, data)
    if what == 1:
        lines.insert(random.randrange(len(lines)), lines[at])
    elif what == 2:
        del lines[at]
    else:
        lines[at] = mutated_body(random, lines[at]) + b"\n"
    return b"".join(lines)


def mutated_cells(random: Random, data: bytes) -> bytes:
    """Change a cell or a column name of a CSV file, or its bytes."""
    if random.random() < 0.3:
        return mutated_bytes(random, data)
    lines = data.split(b"\n")
    at = random.choice((0, random.randrange(len(lines))))
    cells = lines[at].split(b",")
    cells[random.randrange(len(cells))] = random.choice((*ODD_CELLS, *cells))
    lines[at] = b",".join(cells)
    return b"\n".join(lines)


def run_files(folder: Path) -> Iterator[Reader]:
    """The files of a run, read for reports, the dashboard and to resume."""
    write_run(folder / "record", events(3), summary={"status": "done", "seconds": 3.0})
    (folder / "record" / "run.json").write_text(json.dumps({"run": "a" * 32, "contract": {}}))

    def show(path: Path) -> None:
        record = RunRecord(path / "record")
        render([record])
        runs = open_runs([path / "record"])
        runs[0].refresh()
        script_safe_json([runs[0].series(), runs[0].state()])
        metrics_text(runs)

    def resume(path: Path) -> None:
        with TemporaryDirectory() as scratch:
            copy = Path(scratch) / "record"
            shutil.copytree(path / "record", copy)
            run = RunFolder(copy, {}, resume=True)
            run.finish({})
            RunRecord(copy)

    yield Reader("events.jsonl", "record/events.jsonl", mutated_lines, show)
    yield Reader("resumed events.jsonl", "record/events.jsonl", mutated_lines, resume)
    for name in ("settings.json", "summary.json", "run.json"):
        yield Reader(f"record {name}", f"record/{name}", mutated_body, show)


def raw_files(folder: Path) -> Iterator[Reader]:
    """The rows that `celu prepare` reads."""
    columns = {
        "id": [f"user-{row}" for row in range(NUM_ROWS)],
        "y": [row % 2 for row in range(NUM_ROWS)],
        "x": [row / 7 for row in range(NUM_ROWS)],
        "c": [f"c{row % 5}" for row in range(NUM_ROWS)],
        "w": [f"w{row % 3}" for row in range(NUM_ROWS)],
        "m": [row % 4 / 2 for row in range(NUM_ROWS)],
        "q": [row * row for row in range(NUM_ROWS)],
        "d": [f"2024-01-{row + 1:02}T{row:02}:30:00" for row in range(NUM_ROWS)],
        "b": ["|".join("xyz"[: row % 4]) for row in range(NUM_ROWS)],
    }
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "rows.tsv").write_text("\n".join(lines).replace(",", "\t") + "\n")
    pq.write_table(pa.table(columns), folder / "rows.parquet")

    def read(path: Path, name: str) -> object:
        with TemporaryDirectory() as scratch:
            return prepare([path / name], [Target(ALL_KINDS, Path(scratch) / "store")])

    for name in ("rows.csv", "rows.tsv", "rows.parquet"):
        mutate = mutated_bytes if name == "rows.parquet" else mutated_cells
        yield Reader(name, name, mutate, lambda path, name=name: read(path, name))
        yield Reader(
            f"draft of {name}", name, mutate, lambda path, name=name: draft_schema(path / name)
        )


def score_files(folder: Path) -> Iterator[Reader]:
    """The scores and labels that `celu evaluate` reads."""
    rows = [f"user-{row}" for row in range(NUM_ROWS)]
    scores, labels = np.linspace(0, 1, NUM_ROWS), np.arange(NUM_ROWS) % 2
    for name, num_classes in (("scores.parquet", None), ("classes.parquet", 2)):
        output: Output = "multiclass" if num_classes else "binary"
        values = np.stack([1 - scores, scores], axis=1) if num_classes else scores
        with ScoreWriter(folder / name, model="m", output=output, num_classes=num_classes) as file:
            file.write(rows, values, ["bank"] * NUM_ROWS, labels.astype(np.bool_))
    with ScoreWriter(
        folder / "held-out.parquet", model="m", output="binary", with_labels=True
    ) as f:
        f.write(rows, scores, ["bank"] * NUM_ROWS, [False] * NUM_ROWS, labels.astype(np.float64))
    lines = [f"{row},{label}" for row, label in zip(rows, labels, strict=True)]
    (folder / "labels.csv").write_text("\n".join(["id,label", *lines, ""]))

    def read(path: Path, name: str) -> None:
        render_evaluation(evaluate(path / name, path / "labels.csv", resamples=0))

    for name in ("scores.parquet", "classes.parquet"):
        yield Reader(name, name, mutated_bytes, lambda path, name=name: read(path, name))
    yield Reader(
        "held-out.parquet",
        "held-out.parquet",
        mutated_bytes,
        lambda path: evaluate(path / "held-out.parquet", resamples=0),
    )
    yield Reader(
        "labels.csv", "labels.csv", mutated_cells, lambda path: read(path, "scores.parquet")
    )


def certificate_files(folder: Path) -> Iterator[Reader]:
    """A party's certificate and key, and an authority."""
    make_authority(folder / "certs", "company")
    make_party(folder / "certs", "guest")

    def read(path: Path) -> None:
        own = path / "certs"
        ca = own / "ca.pem"
        credentials = Credentials.read(own / "guest.pem", own / "guest.key", {"host": ca})
        client_context(credentials, "host")
        server_context(credentials, ["host"])
        is_issued_for(credentials.certificate, "guest", credentials.authorities["host"])

    for name in ("guest.pem", "guest.key", "ca.pem"):
        yield Reader(name, f"certs/{name}", mutated_bytes, read)


def privacy_files(folder: Path) -> Iterator[Reader]:
    """The key and the ledger of a guest's labels."""
    (folder / "privacy").mkdir()
    key = read_label_key(folder / "privacy" / "label.key")
    release = Release(key=key.fingerprint, epsilon=1.0, classes=2, labels="a" * 32)
    spend(folder / "privacy" / "label.key", release, None)

    def read_key(path: Path) -> None:
        (path / "privacy" / "label.key").chmod(0o600)
        SecretKey.read(path / "privacy" / "label.key", LABELS)

    yield Reader("label.key", "privacy/label.key", mutated_bytes, read_key)
    for mutate in (mutated_bytes, mutated_body):
        yield Reader(
            f"privacy.json, {mutate.__name__}",
            "privacy/privacy.json",
            mutate,
            lambda path: read_ledger(path / "privacy" / "label.key"),
        )


def alignment_files(folder: Path) -> Iterator[Reader]:
    """The progress of an alignment, which resumes from it or starts over."""
    state = ExchangeState(folder / "psi", "these rows", 6, 4)
    state.start("ab" * 32, b"k" * 32, 6)
    for chunk in range(2):
        values = bytes(range(state.own.size(chunk) * VALUE_BYTES))
        state.own.append(values)
        state.record_answer(chunk, values)
    (folder / "psi" / "answered").write_text('{"count": 5, "largest": 3}')

    def read(path: Path) -> None:
        with TemporaryDirectory() as scratch:
            copy = Path(scratch) / "psi"
            shutil.copytree(path / "psi", copy)
            found = ExchangeState(copy, "these rows", 6, 4)
            assert found.answered.count >= 0
            if found.saved is not None:
                found.resume(2, 1)
                found.own.values()
                found.peers.values()
            found.start("cd" * 32, b"k" * 32, 6)

    for name in ("state", "own", "peers", "answered"):
        mutate = mutated_body if name in ("state", "answered") else mutated_bytes
        yield Reader(f"psi {name}", f"psi/{name}", mutate, read)
