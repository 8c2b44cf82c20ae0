"""Labels as raw files have them, from `celu prepare` to `celu evaluate`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import celu
from celu.cli.app import app
from celu.config.schema import read_store_schema
from celu.errors import CeluError, DataError, ModelError
from celu.scores.file import read_scores
from celu.serving.model_folder import load_model

ROWS = 400
JOB = """
seed = 1
batch_size = 64
rounds = 80
guest = "bank"
[hosts.shop]
z_width = 4
[optimizer]
name = "adam"
lr = 0.1
[evaluation]
every = 40
"""


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


class Companies:
    """A bank with labels and a shop, with raw tables and settings in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = 0
        random = np.random.default_rng(1)
        self.x = random.normal(size=(ROWS, 2))
        self.signal = self.x.sum(axis=1)
        self.write("shop", ["x"], [self.x[:, 1]])

    def write(self, name: str, head: list[str], columns: list[Any], more: str = "") -> str:
        """Write a raw table, and prepare its store; returns what was printed."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        rows = [
            ",".join(map(str, (f"p{row}", *cells)))
            for row, cells in enumerate(zip(*columns, strict=True))
        ]
        (place / "rows.csv").write_text("\n".join([",".join(["id", *head]), *rows]) + "\n")
        schema = f'id = "id"\n{more}split = {{ test = 0.25 }}\n[numbers]\nx = {{}}\n'
        (place / "schema.toml").write_text(schema)
        return invoke(
            *("prepare", place / "rows.csv", "--schema", place / "schema.toml"),
            *("--out", place / "store", "--force"),
        )

    def label(self, labels: list[str], *, positive: str = "") -> str:
        """Give the bank's rows labels; returns what `celu prepare` printed."""
        return self.write("bank", ["x", "y"], [self.x[:, 0], labels], f'label = "y"\n{positive}')

    def train(self, loss: str, top: str = '{ use = "wdl", hidden = [8] }') -> Path:
        (self.folder / "job.toml").write_text(JOB)
        bottom = 'bottom = { use = "wdl", hidden = [8] }\n'
        for name, role, model in (
            ("bank", "guest", f'{bottom}top = {top}\nloss = "{loss}"\n'),
            ("shop", "host", bottom),
        ):
            (self.folder / name / "party.toml").write_text(
                f'role = "{role}"\nname = "{name}"\ninsecure = true\n'
                f'[peers.{"shop" if role == "guest" else "bank"}]\nconnect = "127.0.0.1:1"\n'
                f'[data]\nstore = "store"\naligned = true\n[model]\n{model}'
            )
        self.runs += 1
        out = self.folder / f"run-{self.runs}"
        parties = [self.folder / name / "party.toml" for name in ("bank", "shop")]
        invoke("simulate", *parties, "--job", self.folder / "job.toml", "--out", out)
        return out

    def score(self, run: Path) -> celu.Predictions:
        """Export the model, and score the test rows into scores.parquet."""
        for name, folder in (("bank", run), ("shop", run / "hosts" / "shop")):
            invoke("export", folder, "--out", self.folder / name / "model", "--force")
        parts = {name: load_model(self.folder / name / "model") for name in ("bank", "shop")}
        stores = {name: celu.open_store(self.folder / name / "store") for name in ("bank", "shop")}
        return celu.predict(
            parts["bank"],
            stores["bank"],
            {"shop": (parts["shop"], stores["shop"], None)},
            out=self.folder / "scores.parquet",
        )

    def evaluate(self) -> dict[str, float]:
        out = self.folder / "evaluation.json"
        invoke(
            *("evaluate", self.folder / "scores.parquet"),
            *("--labels", self.folder / "bank" / "rows.csv"),
            *("--label", "y", "--resamples", "0", "--json", out),
        )
        metrics = json.loads(out.read_text())["overall"]["metrics"]
        return {name: figure["value"] for name, figure in metrics.items()}

    def card(self) -> str:
        return (self.folder / "bank" / "model" / "card.md").read_text()


@pytest.fixture
def companies(tmp_path: Path) -> Companies:
    return Companies(tmp_path)


@pytest.mark.parametrize(
    ("label", "declaration"),
    [
        ("{:,.0f}", 'thousands = ","'),
        ("{:.0f}%", 'units = ["%"]'),
        ("${:,.2f}", 'thousands = "," and units = ["$"]'),
    ],
)
def test_labels_of_text_that_look_like_numbers_are_named_with_what_to_declare(
    companies: Companies, label: str, declaration: str
) -> None:
    texts = [f'"{label.format(10_000 + 1_000 * value)}"' for value in companies.signal]
    printed = companies.label(texts)
    advice = f"they look like numbers: set {declaration} under [source] in schema.toml"
    assert f"classes of text; {advice}" in " ".join(printed.split())
    with pytest.raises(DataError, match=r"they look like numbers: declare their separators and"):
        companies.train("regression")
    source = "[source]\n" + declaration.replace(" and ", "\n") + "\n"
    path = companies.folder / "bank" / "schema.toml"
    path.write_text(path.read_text() + source)
    printed = invoke(
        *("prepare", companies.folder / "bank" / "rows.csv", "--schema", path),
        *("--out", companies.folder / "bank" / "store", "--force"),
    )
    assert "they look like numbers" not in printed


def test_two_fractions_are_named_as_they_are_written(companies: Companies) -> None:
    labels = np.where(companies.signal > 0, "0.9", "0.1").tolist()
    printed = companies.label(labels)
    assert "label y: two classes, 0.1 and 0.9 (positive)" in printed
    printed = companies.label(labels, positive="positive = 0.1\n")
    assert "label y: two classes, 0.9 and 0.1 (positive)" in printed
    shown = invoke("inspect", companies.folder / "bank" / "store")
    stored = pq.read_table(companies.folder / "bank" / "store" / "train.parquet")
    rate = np.mean(stored.column("label").to_numpy() < 0.5)
    assert f"positive rate: {rate:.4f}" in shown
    found = companies.score(companies.train("binary"))
    assert found.classes == (0.9, 0.1)
    assert companies.evaluate()["auc"] > 0.75


def test_large_integers_train_with_the_loss_binary(companies: Companies) -> None:
    labels = np.where(companies.signal > 0, 20240101, 20240100)
    companies.label(labels.astype(str).tolist())
    found = companies.score(companies.train("binary"))
    assert found.classes == (20240100, 20240101)
    assert companies.evaluate()["auc"] > 0.75


def test_two_texts_train_and_the_schema_names_the_positive_one(companies: Companies) -> None:
    labels = np.where(companies.signal > 0, " >50K", "<=50K").tolist()
    printed = companies.label(labels)
    assert "label y: two classes, <=50K and >50K (positive)" in printed
    printed = companies.label(labels, positive='positive = "<=50K"\n')
    assert "label y: two classes, >50K and <=50K (positive)" in printed
    shown = invoke("inspect", companies.folder / "bank" / "store")
    assert "label y: two classes, >50K and <=50K (positive)" in shown
    stored = pq.read_table(companies.folder / "bank" / "store" / "train.parquet")
    rate = np.mean(stored.column("label").to_numpy())
    assert f"positive rate: {rate:.4f}" in shown and rate < 0.6
    found = companies.score(companies.train("binary"))
    assert found.classes == (">50K", "<=50K")
    assert read_scores(companies.folder / "scores.parquet").classes == (">50K", "<=50K")
    low = {f"p{row}": companies.signal[row] <= 0 for row in range(ROWS)}
    is_low = np.array([low[id_] for id_ in found.ids])
    assert found.scores[is_low].mean() > found.scores[~is_low].mean() + 0.1
    assert companies.evaluate()["auc"] > 0.75
    held_out = read_scores(companies.folder / "run-1" / "scores.parquet")  # with labels of its own
    assert held_out.classes == (">50K", "<=50K")
    assert celu.evaluate(held_out.path, resamples=0).metrics["auc"] > 0.75
    assert "| positive class | \\<=50K |" in companies.card()


def test_text_labels_that_differ_in_case_only_are_a_warning(companies: Companies) -> None:
    printed = companies.label([["yes", "no", "Yes"][n % 3] for n in range(len(companies.x))])
    assert "3 classes, of which 1 differ from another in upper and lower case only" in printed


def test_labels_1_and_2_train_as_a_negative_and_a_positive_class(companies: Companies) -> None:
    labels = np.where(companies.signal > 0, "2", "1").tolist()
    assert "label y: two classes, 1 and 2 (positive)" in companies.label(labels)
    assert read_store_schema(companies.folder / "bank" / "store").classes == [1, 2]
    found = companies.score(companies.train("binary"))
    assert found.classes == (1, 2)
    assert companies.evaluate()["auc"] > 0.75
    companies.label(labels, positive="positive = 1\n")
    assert "two classes, 2 and 1 (positive)" in invoke("inspect", companies.folder / "bank/store")
    other = companies.score(companies.train("binary"))
    assert np.corrcoef(found.scores, other.scores)[0, 1] < -0.5
    assert companies.evaluate()["auc"] > 0.75


def test_text_classes_give_the_top_its_outputs_and_predictions_their_names(
    companies: Companies,
) -> None:
    names = np.array(["silver", "gold", "bronze", "none"])
    labels = names[np.digitize(companies.signal, [-1, 0, 1])].tolist()
    assert "label y: 4 classes: bronze, gold, none, silver" in companies.label(labels)
    run = companies.train("multiclass")
    found = companies.score(run)
    assert found.scores.shape[1] == 4
    assert found.classes == ("bronze", "gold", "none", "silver")
    assert companies.evaluate()["accuracy"] > 0.5
    assert "| classes | bronze, gold, none, silver |" in companies.card()
    with pytest.raises(
        ModelError, match=r"outputs: expected 4, one for each class .* got 3; leave"
    ):
        companies.train("multiclass", '{ use = "wdl", outputs = 3 }')


def test_codes_give_the_top_its_outputs(companies: Companies) -> None:
    labels = np.digitize(companies.signal, [-1, 0, 1]).astype(str).tolist()
    assert "label y: classes by code" in companies.label(labels)
    found = companies.score(companies.train("multiclass"))
    assert found.scores.shape[1] == 4 and found.classes is None
    assert companies.evaluate()["accuracy"] > 0.5


def test_an_income_is_predicted_in_its_own_units(companies: Companies) -> None:
    incomes = companies.signal * 20_000 + 60_000
    companies.label([f"{income:.2f}" for income in incomes])
    run = companies.train("regression")
    summary = json.loads((run / "summary.json").read_text())
    last = summary["evaluations"][-1]
    assert last["rmse"] < 0.5 * incomes.std()
    found = companies.score(run)
    of_id = {f"p{row}": income for row, income in enumerate(incomes)}
    errors = found.scores - np.array([of_id[id_] for id_ in found.ids])
    assert companies.evaluate()["rmse"] == pytest.approx(np.sqrt(np.square(errors).mean()))
    held_out = set(pq.read_table(companies.folder / "bank/store/test.parquet")["id"].to_pylist())
    is_test = [id_ in held_out for id_ in found.ids]
    assert last["rmse"] == pytest.approx(np.sqrt(np.square(errors[is_test]).mean()), rel=1e-4)
    assert "| mean of the label | " in companies.card()
    hosts = json.loads((run / "hosts" / "shop" / "trained.json").read_text())
    assert hosts["label_map"] == {"classes": None, "mean": 0.0, "deviation": 1.0}


@pytest.mark.parametrize(
    ("labels", "loss", "message"),
    [
        ([str(row % 95) for row in range(ROWS)], "binary", 'two classes for the loss "binary"'),
        ([f"c{row % 3}" for row in range(ROWS)], "binary", 'the loss "binary", got 3; choose'),
        ([f"c{row % 3}" for row in range(ROWS)], "regression", "got text of 3 classes"),
        ([str(row / 8) for row in range(ROWS)], "multiclass", "expected codes from 0"),
    ],
)
def test_a_store_whose_labels_do_not_fit_the_loss_is_refused_before_training(
    companies: Companies, labels: list[str], loss: str, message: str
) -> None:
    companies.label(labels)
    with pytest.raises(DataError, match=rf"bank/store: column 'y': the labels: .*{message}"):
        companies.train(loss)
    assert "round" not in (companies.folder / "run-1" / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("labels", "positive", "message"),
    [
        (["a", "b", "c", "d"], '"a"', "positive: expected a label with two values, got 4"),
        (["a", "b"], '"x"', "positive: expected one of the two values of the label"),
        (["1", "2"], "3", "positive: expected one of the two values of the label"),
        (["1", "2", "3", "4"], "3", "positive: expected a label with two values, got more"),
    ],
)
def test_a_positive_class_that_the_label_does_not_have_is_refused(
    companies: Companies, labels: list[str], positive: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        companies.label((labels * ROWS)[:ROWS], positive=f"positive = {positive}\n")


def test_new_rows_get_the_codes_of_the_store_and_other_classes_are_refused(
    companies: Companies,
) -> None:
    companies.label(["yes", "no"] * (ROWS // 2))
    bank = companies.folder / "bank"
    (bank / "new.csv").write_text("id,x,y\nn1,0.5,yes\nn2,0.5, yes\n")
    invoke("prepare", bank / "new.csv", "--like", bank / "store", "--out", bank / "new")
    new = pq.read_table(bank / "new" / "test.parquet")
    assert new.column("label").to_pylist() == [1, 1]
    (bank / "other.csv").write_text("id,x,y\nn1,0.5,yes\nn2,0.5,maybe\n")
    with pytest.raises(CeluError, match="expected the 2 classes of the store, got others in 1 row"):
        invoke("prepare", bank / "other.csv", "--like", bank / "store", "--out", bank / "more")


def test_a_store_of_labels_0_and_1_has_the_digest_of_earlier_releases(companies: Companies) -> None:
    companies.label(["0", "1"] * (ROWS // 2))
    schema = read_store_schema(companies.folder / "bank" / "store")
    assert schema.classes == [0, 1]
    assert schema.digest() == schema.model_copy(update={"classes": None}).digest()
    assert schema.digest() != schema.model_copy(update={"classes": [1, 0]}).digest()
