"""The options of `celu predict` and `celu align --store`, and all parties in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.config.templates import SettingsTemplate, write_settings
from celu.errors import CeluError, ConfigError, DataError
from celu.scores.file import read_scores
from stores import write_store

TINY = SettingsTemplate(
    guest="airline",
    host="weather",
    bottom='{ use = "wdl", hidden = [8] }',
    top='"wdl"',
    batch_size=32,
    z_width=4,
    rounds=6,
    evaluate_every=3,
)
PARTIES = ("airline", "weather")


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, CeluError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parties with a trained model, exported at both, and the serving contract."""
    folder = tmp_path_factory.mktemp("predict")
    x = np.random.default_rng(1).normal(size=(2, 200)).astype(np.float32)
    tables = {"airline": {"a": x[0], "label": (x.sum(0) > 0).astype(np.float32)}}
    tables["weather"] = {"b": x[1]}
    for name, table in tables.items():
        write_store(folder / name / "store", table)
        write_store(folder / name / "same", table, ids={"train": ids(0), "test": ids(200)})
    write_settings(folder, TINY, local=True)
    for name in PARTIES:
        path = folder / name / "party.toml"
        keys = f'[keys]\ncertificate = "certs/{name}.pem"\nkey = "certs/{name}.key"\n'
        path.write_text(
            path.read_text().replace(keys, "").replace("[peers", "insecure = true\n[peers")
        )
    settings = [folder / name / "party.toml" for name in PARTIES]
    run = folder / "run"
    invoke("simulate", *settings, "--job", folder / "job.toml", "--out", run)
    invoke("export", run, "--out", folder / "airline" / "model")
    invoke("export", run / "hosts" / "weather", "--out", folder / "weather" / "model")
    (folder / "serving.toml").write_text(
        'guest = "airline"\nhosts = ["weather"]\nchunk_rows = 32\n'
    )
    return folder


def ids(start: int) -> list[str]:
    return [f"row-{start + row}" for row in range(200)]


def predict(folder: Path, parties: tuple[str, ...], *more: str | Path) -> str:
    settings = [folder / name / "party.toml" for name in parties]
    model: str | Path = "model" if len(parties) > 1 else folder / parties[0] / "model"
    serving = folder / "serving.toml"
    return invoke("predict", *settings, "--serving", serving, "--model", model, *more)


def test_all_parties_predict_in_one_process(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    text = predict(folder, PARTIES, "--store", "same", "--aligned", "--out", out)
    assert "400 of 400 rows" in text and "rows scored" in text
    scores = read_scores(out)
    assert sorted(scores.ids.to_pylist()) == sorted(ids(0) + ids(200))
    assert not scores.fallback.any()
    with pytest.raises(ConfigError, match="already exists; to replace it, use --force"):
        predict(folder, PARTIES, "--store", "same", "--aligned", "--out", out)
    before = pq.read_table(out)
    predict(folder, PARTIES, "--store", "same", "--aligned", "--out", out, "--force")
    assert pq.read_table(out).equals(before)
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


def test_the_training_store_is_the_default(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    predict(folder, PARTIES, "--out", out)
    assert len(read_scores(out)) == 400


@pytest.mark.parametrize(
    ("parties", "options", "message"),
    [
        (("airline",), ["--store", "s"], "--alignment: expected the alignment of the store"),
        (
            ("airline",),
            ["--store", "s", "--alignment", "a", "--aligned", "--out", "x"],
            "expected one of them, got both",
        ),
        (("airline",), [], "--out: expected the scores file to write, got none"),
        (("airline",), ["--out", "."], "expected the name of a file, got a folder"),
        (("weather",), ["--out", "x"], "--out: expected it at the guest only"),
        (PARTIES, ["--out", "x", "--listen", "localhost:1"], "--connect, --listen: expected none"),
        (("airline", "airline"), ["--out", "x"], r"every party, got none for \['weather'\]"),
        (("airline",), ["--out", "x", "--connect", "other=a:1"], "--connect: expected NAME"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    folder: Path, parties: tuple[str, ...], options: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        predict(folder, parties, *options)


def test_a_part_of_another_party_is_refused(folder: Path, tmp_path: Path) -> None:
    serving, party = folder / "serving.toml", folder / "airline" / "party.toml"
    arguments = ["--model", folder / "weather" / "model", "--out", tmp_path / "x"]
    with pytest.raises(ConfigError, match=r"party: expected airline, .*got weather"):
        invoke("predict", party, "--serving", serving, *arguments)


def test_a_contract_of_other_parties_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "serving.toml"
    other.write_text('guest = "bank"\nhosts = ["weather"]\n')
    with pytest.raises(ConfigError, match="expected one of the contract's parties, bank"):
        invoke(
            "predict", folder / "airline" / "party.toml", "--serving", other,
            "--model", folder / "airline" / "model", "--out", tmp_path / "x",
        )  # fmt: skip


def test_a_store_with_other_columns_is_refused(folder: Path, tmp_path: Path) -> None:
    write_store(folder / "airline" / "other", {"z": np.zeros(3, np.float32)})
    with pytest.raises(DataError, match=r"expected the schema of model .*celu prepare --like"):
        predict(folder, PARTIES, "--store", "other", "--aligned", "--out", tmp_path / "x")


def test_another_store_is_not_aligned_over_the_training_alignment(folder: Path) -> None:
    party = folder / "airline" / "party.toml"
    with pytest.raises(ConfigError, match="--store: expected --out too"):
        invoke("align", party, "--job", folder / "job.toml", "--store", folder / "airline" / "same")
