"""Two companies predict as processes over mutual TLS: prepared, aligned, killed and resumed."""

from __future__ import annotations

import os
import pty
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import celu
from celu.config.templates import SettingsTemplate, write_settings
from celu.metrics.measure import compute
from celu.scores.file import read_scores
from celu.testing import align_parties, free_port, make_keys, run_parties
from processes import DEADLINE_S, STDOUT, CeluProcess, run_celu

TINY = SettingsTemplate(
    guest="airline",
    host="weather",
    bottom='{ use = "wdl", embedding_dim = 4, hidden = [8] }',
    top='{ use = "wdl", hidden = [8] }',
    batch_size=64,
    z_width=8,
    rounds=40,
    evaluate_every=20,
)
SCHEMAS = {
    "airline": 'id = "id"\nlabel = "y"\n[numbers.x]\nstandardise = true\n'
    "[categories.c]\nvocabulary = 10\n",
    "weather": 'id = "id"\n[numbers.x]\n[categories.c]\nbuckets = 7\n',
}
OLD = {"airline": range(2000), "weather": range(300, 2400)}
NEW_ROWS = 100_000  # a part and a half
NEW = {"airline": range(10**6, 10**6 + NEW_ROWS), "weather": range(10**6 + 5000, 10**6 + NEW_ROWS)}
PARTIES = ("airline", "weather")


def write_csv(path: Path, name: str, people: range, *, label: bool) -> None:
    number = np.random.default_rng(7).permutation(np.array(people))
    columns = {
        "id": pa.array([f"person-{p}" for p in number]),
        "x": pa.array(np.sin(number + (name == "airline"))),
        "c": pa.array([f"c{p % 5}" for p in number]),
    }
    if label:
        columns["y"] = pa.array((np.sin(number) + np.sin(number + 1) > 0.2).astype(int))
    pyarrow.csv.write_csv(pa.table(columns), path)


def run_to_its_end(*arguments: str | Path) -> None:
    done = run_celu(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def start(folder: Path, name: str, *more: str | Path) -> CeluProcess:
    arguments = ["predict", folder / name / "party.toml", *predict_options(folder, name), *more]
    return CeluProcess(arguments, stderr=STDOUT, env={**os.environ, "COLUMNS": "200"})


def predict_options(folder: Path, name: str) -> list[str | Path]:
    own = folder / name
    return [
        *("--serving", folder / "serving.toml", "--model", own / "model"),
        *("--store", own / "new", "--alignment", own / "new-alignment"),
    ]


def ended(*processes: CeluProcess) -> list[tuple[int, str]]:
    outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    return [(p.returncode, text) for p, text in zip(processes, outputs, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained and exported model, and new rows that are prepared and aligned at both parties."""
    folder = tmp_path_factory.mktemp("predict")
    for name in PARTIES:
        own = folder / name
        own.mkdir()
        (own / "schema.toml").write_text(SCHEMAS[name])
        write_csv(own / "old.csv", name, OLD[name], label=name == "airline")
        write_csv(own / "new.csv", name, NEW[name], label=False)
        run_to_its_end(
            "prepare", own / "old.csv", "--schema", own / "schema.toml", "--out", own / "store"
        )
        run_to_its_end("prepare", own / "new.csv", "--like", own / "store", "--out", own / "new")
    write_settings(folder, TINY, port=free_port(), local=True, aligned=False)
    make_keys(folder, list(PARTIES))
    for name in PARTIES:
        path = folder / name / "party.toml"
        path.write_text(path.read_text().replace("[peers", "connect_s = 600\n[peers", 1))
    align_parties(folder, list(PARTIES), folder / "job.toml", timeout_s=DEADLINE_S)
    run_parties(folder, list(PARTIES), folder / "job.toml", "run", timeout_s=DEADLINE_S)
    aligning = []
    for name in PARTIES:
        own = folder / name
        run_to_its_end("export", own / "run", "--out", own / "model")
        options = ["--store", own / "new", "--out", own / "new-alignment"]
        aligning.append(
            CeluProcess(
                ["align", own / "party.toml", "--job", folder / "job.toml", *options], stderr=STDOUT
            )
        )
    for code, text in ended(*aligning):
        assert code == 0, text
    (folder / "serving.toml").write_text('guest = "airline"\nhosts = ["weather"]\n')
    return folder


@pytest.fixture(scope="module")
def complete(folder: Path) -> pa.Table:
    """The scores of a prediction that was not interrupted."""
    out = folder / "complete.parquet"
    guest, host = start(folder, "airline", "--out", out), start(folder, "weather")
    for (code, text), said in zip(ended(guest, host), ("rows scored", "rows sent"), strict=True):
        assert code == 0 and said in text, text
    return pq.read_table(out)


def test_new_rows_are_scored_and_those_that_the_host_lacks_are_flagged(
    folder: Path, complete: pa.Table
) -> None:
    assert complete.num_rows == NEW_ROWS
    lacking = {f"person-{p}" for p in range(10**6, 10**6 + 5000)}
    flagged = complete.filter(complete["fallback"])
    assert set(flagged["id"].to_pylist()) == lacking
    assert set(flagged["hosts"].to_pylist()) == {""}
    others = complete.filter(pa.compute.invert(complete["fallback"]))
    assert set(others["hosts"].to_pylist()) == {"weather"}
    name = (folder / "airline" / "model" / "model.json").read_text()
    assert celu.load_model(folder / "airline" / "model").name in str(complete.schema.metadata)
    assert "person-" not in name


@pytest.mark.parametrize("on_a_terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(
    folder: Path, tmp_path: Path, on_a_terminal: bool
) -> None:
    ours, theirs = pty.openpty() if on_a_terminal else os.pipe()
    arguments = ["predict", *(folder / name / "party.toml" for name in PARTIES)]
    arguments += ["--serving", folder / "serving.toml", "--model", "model", "--store", "new"]
    arguments += ["--alignment", "new-alignment", "--out", tmp_path / "scores.parquet"]
    env = {**os.environ, "COLUMNS": "200", "TERM": "xterm-256color"}
    process = CeluProcess(arguments, stdout=theirs, stderr=STDOUT, env=env)
    os.close(theirs)
    printed = b""
    with suppress(OSError):  # how a terminal ends
        while data := os.read(ours, 65536):
            printed += data
    os.close(ours)
    assert process.wait() == 0, printed
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode())
    bar = rf"all parties ━+ {NEW_ROWS}/{NEW_ROWS} rows [\d,]+ rows/s left 0:00:00"
    line = rf"all parties: {NEW_ROWS:,} of {NEW_ROWS:,} rows, [\d,]+ rows/s"
    assert bool(re.search(bar, text)) is on_a_terminal, text
    assert bool(re.search(line, text)) is not on_a_terminal, text


def test_one_process_gives_the_same_file(folder: Path, complete: pa.Table) -> None:
    out = folder / "together.parquet"
    settings = [folder / name / "party.toml" for name in PARTIES]
    run_to_its_end(
        "predict", *settings, "--serving", folder / "serving.toml", "--model", "model",
        "--store", "new", "--alignment", "new-alignment", "--out", out,
    )  # fmt: skip
    assert pq.read_table(out).equals(complete)


def test_the_training_rows_get_the_scores_of_the_runs_own_evaluation(folder: Path) -> None:
    serving = folder / "as-in-training.toml"
    serving.write_text('guest = "airline"\nhosts = ["weather"]\nchunk_rows = 64\n')
    out = folder / "old.parquet"
    processes = []
    for name in PARTIES:
        options = ["--serving", serving, "--model", folder / name / "model"]
        more = ["--out", out] if name == "airline" else []
        processes.append(
            CeluProcess(["predict", folder / name / "party.toml", *options, *more], stderr=STDOUT)
        )
    for code, text in ended(*processes):
        assert code == 0, text
    scores = read_scores(out)
    store = celu.open_store(folder / "airline" / "store")
    datasets = store.datasets(alignment=folder / "airline" / "alignment")
    count = datasets.train.num_rows, datasets.test.num_rows
    assert (~scores.fallback).sum() == sum(count)
    test_scores = scores.scores[count[0] : sum(count)]
    assert datasets.test.labels is not None
    labels = datasets.test.labels.double().numpy()
    measured = compute("binary", test_scores, labels, ["auc"])["auc"]
    events = (folder / "airline" / "run" / "events.jsonl").read_text().splitlines()
    last = [line for line in events if '"evaluation"' in line][-1]
    assert f'"auc": {measured}' in last or f'"auc":{measured}' in last
    # tests/serving/test_predict.py compares the scores of one process with an evaluation, by bit.
    models = {name: celu.load_model(folder / name / "model") for name in PARTIES}
    host = (
        models["weather"],
        celu.open_store(folder / "weather" / "store"),
        folder / "weather" / "alignment",
    )
    together = celu.predict(
        models["airline"], store, {"weather": host}, alignment=folder / "airline" / "alignment",
        chunk_rows=64,
    )  # fmt: skip
    assert np.array_equal(together.scores, scores.scores)


@pytest.fixture
def slow_link(folder: Path) -> Iterator[None]:
    """The host sends slowly enough that a prediction can be killed in the middle."""
    path = folder / "weather" / "party.toml"
    original = path.read_text()
    path.write_text("link = { mbps = 2 }\n" + original)
    yield
    path.write_text(original)


def wait_for_parts(out: Path, count: int, process: CeluProcess) -> None:
    work = out.parent / f".{out.name}.work"
    deadline = time.monotonic() + DEADLINE_S
    while not work.is_dir() or len(list(work.glob("part-*.parquet"))) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("slow_link")
@pytest.mark.parametrize("parts", [0, 1])
def test_both_parties_killed_and_started_again_end_with_the_same_file(
    folder: Path, complete: pa.Table, tmp_path: Path, parts: int
) -> None:
    out = tmp_path / "scores.parquet"
    for victims in (("airline", "weather"), ()):
        processes = [start(folder, "airline", "--out", out), start(folder, "weather")]
        if victims:
            wait_for_parts(out, parts, processes[0])
            for process in processes:
                process.send_signal(signal.SIGKILL)
            ended(*processes)
            assert not out.exists()
        else:
            for code, text in ended(*processes):
                assert code == 0, text
    assert pq.read_table(out).equals(complete)
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


@pytest.mark.usefixtures("slow_link")
@pytest.mark.parametrize("victim", PARTIES)
def test_a_party_killed_and_started_again_alone_ends_with_the_same_file(
    folder: Path, complete: pa.Table, tmp_path: Path, victim: str
) -> None:
    out = tmp_path / "scores.parquet"
    more = {"airline": ["--out", out], "weather": []}
    processes = {name: start(folder, name, *more[name]) for name in PARTIES}
    wait_for_parts(out, 1, processes["airline"])
    processes[victim].send_signal(signal.SIGKILL)
    ended(processes[victim])
    processes[victim] = start(folder, victim, *more[victim])
    survivor = next(name for name in PARTIES if name != victim)
    (code, text), (other_code, other_text) = ended(processes[survivor], processes[victim])
    assert (code, other_code) == (0, 0), text + other_text
    assert "starting over from the last part" in text
    assert pq.read_table(out).equals(complete)


@pytest.mark.parametrize("what", ["model", "serving", "alignment"])
def test_parties_with_different_files_refuse_each_other_by_name(
    folder: Path, tmp_path: Path, what: str
) -> None:
    own = folder / "weather"
    options = {
        "serving": folder / "serving.toml",
        "model": own / "model",
        "store": own / "new",
        "alignment": own / "new-alignment",
    }
    if what == "serving":
        options["serving"] = tmp_path / "serving.toml"
        text = (folder / "serving.toml").read_text()
        options["serving"].write_text(text + 'codec = "bf16"\n')
    elif what == "model":
        # Another model of the same parties: another round of the same run.
        facts = (own / "model" / "model.json").read_text()
        options["model"] = tmp_path / "model"
        options["model"].mkdir()
        for file in (own / "model").iterdir():
            (options["model"] / file.name).write_bytes(file.read_bytes())
        changed = facts.replace('"round": 40', '"round": 39')
        assert changed != facts
        (options["model"] / "model.json").write_text(changed)
    else:
        options["store"], options["alignment"] = own / "store", own / "alignment"
    given = [x for k, v in options.items() for x in (f"--{k}", v)]
    host = CeluProcess(["predict", own / "party.toml", *given], stderr=STDOUT)
    guest = start(folder, "airline", "--out", tmp_path / "scores.parquet")
    field = {"model": "model: ", "serving": "codec: ", "alignment": "test_ids: "}[what]
    for code, text in ended(guest, host):
        assert code in (7, 12), text
        assert field in " ".join(text.split()), text
    assert not (tmp_path / "scores.parquet").exists()
