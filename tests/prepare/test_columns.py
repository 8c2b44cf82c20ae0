"""Missing numbers, quantiles, dates and bags: what is fitted, stored, and applied to new rows."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.config.columns import Bag, Category, Date, Number
from celu.config.schema import (
    RawSchema,
    Source,
    Split,
    StoreSchema,
    read_raw_schema,
    read_store_schema,
)
from celu.data.store import open_store
from celu.errors import ConfigError, DataError
from celu.prepare.encoders import statistics
from celu.prepare.encoders.statistics import QuantileSketch, RunningMoments
from celu.prepare.pipeline import prepare_like
from celu.serving.encoding import RowEncoder
from prepare.samples import both, csv, in_test, make, small_blocks

SPLIT = Split(seed=3, test=0.25)
ROWS = 120


def raws(num_rows: int = ROWS) -> list[dict[str, str]]:
    random = np.random.default_rng(1)
    words = ["a", "b", "c", "d d", "é"]
    made = []
    for row in range(num_rows):
        day = datetime(2019, 12, 28, 22, tzinfo=UTC).timestamp() + row * 95 * 3600
        chosen = random.permutation(words)[: int(random.integers(0, 5))]
        made.append(
            {
                "id": f"u{row}",
                "x": "" if row % 4 == 0 else repr(float(random.exponential(3))),
                "when": ""
                if row % 6 == 0
                else f"{datetime.fromtimestamp(day, UTC):%Y-%m-%d %H:%M}",
                "tags": "NA" if row % 9 == 0 else " | ".join(chosen),
            }
        )
    return made


def declared(**columns: Any) -> RawSchema:
    return RawSchema(id="id", split=SPLIT, source=Source(missing=["NA"]), **columns)


def trained(some: list[dict[str, str]], name: str) -> list[str]:
    return [row[name] for row in some if not in_test(row["id"], SPLIT)]


def present(some: list[dict[str, str]], name: str) -> list[float]:
    return [float(cell) for cell in trained(some, name) if cell]


@pytest.mark.parametrize("statistic", ["mean", "median"])
@pytest.mark.parametrize("log", [False, True])
def test_missing_numbers_get_the_statistic_of_the_training_rows_alone(
    tmp_path: Path, statistic: Any, log: bool
) -> None:
    some = raws()
    number = Number(missing=statistic, indicator=True, log=log, standardise=True)
    make(csv(tmp_path, some), declared(numbers={"x": number}), tmp_path / "store")
    values = present(some, "x")
    fill = float(np.mean(values) if statistic == "mean" else np.median(values))
    fitted = read_store_schema(tmp_path / "store").numbers["x"]
    assert fitted.fill == pytest.approx(fill, rel=1e-12)

    def number_of(cell: str) -> float:
        value = float(cell) if cell else fill
        return math.log(value + 1) if log else value

    filled = [number_of(cell) for cell in trained(some, "x")]
    mean, deviation = np.mean(filled), np.std(filled)
    stored = both(tmp_path / "store")
    for row in some:
        expected = (number_of(row["x"]) - mean) / deviation
        assert stored[row["id"]]["x"] == pytest.approx(expected, abs=1e-5)
        assert stored[row["id"]]["x.missing"] == float(row["x"] == "")


def test_rows_that_were_filled_are_counted_whatever_fills_them(tmp_path: Path) -> None:
    some = raws()
    expected = trained(some, "x").count("")
    for number in (
        Number(missing=0.0),
        Number(missing="mean"),
        Number(missing=1.0, indicator=True),
    ):
        make(csv(tmp_path, some), declared(numbers={"x": number}), tmp_path / f"{number.missing}")
        schema = read_store_schema(tmp_path / f"{number.missing}")
        assert schema.missing == {"x": expected}
        text = CliRunner().invoke(app, ["inspect", str(tmp_path / f"{number.missing}")]).output
        lines = [
            [cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in text.split("\n")
        ]
        (headings,) = (cells for cells in lines if "missing" in cells)
        (shown,) = (cells for cells in lines if cells[:1] == ["x"])
        share = expected / schema.rows["train"]
        assert share > 0 and shown[headings.index("missing")] == f"{share:.1%}"


def test_quantiles_divide_the_training_rows_evenly_and_new_rows_get_the_same_codes(
    tmp_path: Path,
) -> None:
    some = raws(400)
    make(csv(tmp_path, some), declared(categories={"x": Category(quantiles=8)}), tmp_path / "store")
    category = read_store_schema(tmp_path / "store").categories["x"]
    values = present(some, "x")
    wanted = np.quantile(values, np.arange(1, 8) / 8, method="averaged_inverted_cdf")
    assert category.edges == pytest.approx(wanted, rel=1e-12)
    assert category.size == 9
    stored = both(tmp_path / "store")
    codes = [stored[row["id"]]["x"] for row in some if not in_test(row["id"], SPLIT) and row["x"]]
    counts = np.bincount(codes, minlength=9)
    assert counts[0] == 0 and counts[1:].max() - counts[1:].min() <= 1
    assert {stored[row["id"]]["x"] for row in some if not row["x"]} == {0}
    new = [{"id": "n0", "x": "-5"}, {"id": "n1", "x": "1e9"}, {"id": "n2", "x": ""}]
    prepare_like([csv(tmp_path, new, "new.csv")], tmp_path / "store", tmp_path / "new")
    assert [both(tmp_path / "new")[row["id"]]["x"] for row in new] == [1, 8, 0]


def test_a_number_that_fills_several_quantiles_is_one_range(tmp_path: Path) -> None:
    some = [{"id": str(n), "x": "0" if n < 70 else str(n)} for n in range(100)]
    schema = RawSchema(id="id", split=Split(test=0.0), categories={"x": Category(quantiles=10)})
    make(csv(tmp_path, some), schema, tmp_path / "store")
    stored = both(tmp_path / "store")
    assert read_store_schema(tmp_path / "store").categories["x"].edges == [35, 79.5, 89.5]
    assert [stored[str(n)]["x"] for n in (0, 69, 70, 80, 99)] == [1, 1, 2, 3, 4]


def test_a_sketch_has_ranks_within_its_bound_and_does_not_depend_on_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "_BUFFER", 256)
    values = np.random.default_rng(0).lognormal(size=40_000)
    fractions = [0.01, 0.25, 0.5, 0.75, 0.99]
    whole, pieces = QuantileSketch(), QuantileSketch()
    whole.add(values)
    for part in np.split(values, [1, 300, 12_345, 30_000]):
        pieces.add(part)
    assert whole.quantiles(fractions) == pieces.quantiles(fractions)
    levels = math.log2(40_000 / 256)
    for fraction, found in zip(fractions, whole.quantiles(fractions), strict=True):
        assert abs((values < found).mean() - fraction) < levels / (2 * 256)
    assert sum(len(b) for b in whole._levels if b is not None) <= 256 * (levels + 1)


def test_a_repeated_value_counts_as_often_as_it_was_added() -> None:
    moments = RunningMoments()
    moments.add(np.array([1.0, 2.0, 6.0]))
    moments.add_equal(4.0, 5)
    everything = [1.0, 2.0, 6.0, *[4.0] * 5]
    assert moments.result() == pytest.approx((np.mean(everything), np.std(everything)), rel=1e-12)


PARTS: list[Any] = ["year", "month", "day", "weekday", "hour", "days_since"]


def parts_of(time: datetime, since: date) -> list[float]:
    time = time.astimezone(UTC)
    days = (time.date() - since).days
    return [time.year, time.month, time.day, time.weekday(), time.hour, days]


@pytest.mark.parametrize(
    ("cell", "format_", "expected"),
    [
        ("2024-02-29", None, "2024-02-29T00:00:00"),
        ("1969-12-31 23:59:59", None, "1969-12-31T23:59:59"),
        ("2024-03-01T01:30:00+02:00", None, "2024-02-29T23:30:00"),
        ("2024-03-01T01:30:00.999Z", None, "2024-03-01T01:30:00"),
        ("20240301", None, "2024-03-01T00:00:00"),
        (" 0001-01-01", None, "0001-01-01T00:00:00"),
        ("31/12/1999 18h", "%d/%m/%Y %Hh", "1999-12-31T18:00:00"),
        ("31/12/1999 18 -0700", "%d/%m/%Y %H %z", "2000-01-01T01:00:00"),
    ],
)
def test_the_parts_of_a_date_are_in_utc(
    tmp_path: Path, cell: str, format_: str | None, expected: str
) -> None:
    some = [{"id": "a", "when": cell}, {"id": "b", "when": cell}]
    when = Date(parts=PARTS, format=format_, since=date(2020, 1, 1))
    schema = RawSchema(id="id", split=Split(test=0.0), dates={"when": when})
    make(csv(tmp_path, some), schema, tmp_path / "store")
    row = both(tmp_path / "store")["a"]
    time = datetime.fromisoformat(expected).replace(tzinfo=UTC)
    assert [row[f"when.{part}"] for part in PARTS] == parts_of(time, date(2020, 1, 1))


def test_a_missing_date_is_filled_with_the_median_time_or_a_day(tmp_path: Path) -> None:
    some = raws()
    dates = {"when": Date(parts=PARTS, missing="median", indicator=True, standardise=True)}
    make(csv(tmp_path, some), declared(dates=dates), tmp_path / "store")
    times = [
        datetime.fromisoformat(cell).replace(tzinfo=UTC) for cell in trained(some, "when") if cell
    ]
    fitted = read_store_schema(tmp_path / "store").dates["when"]
    fill = float(np.median([time.timestamp() for time in times]))
    assert fitted.fill == fill
    times += [datetime.fromtimestamp(fill, UTC)] * trained(some, "when").count("")
    table = np.array([parts_of(time, date(1970, 1, 1)) for time in times])
    stored = both(tmp_path / "store")
    train = [stored[row["id"]] for row in some if not in_test(row["id"], SPLIT)]
    for number, part in enumerate(PARTS):
        assert fitted.mean[part] == pytest.approx(table[:, number].mean())
        assert fitted.deviation[part] == pytest.approx(table[:, number].std())
        assert np.mean([row[f"when.{part}"] for row in train]) == pytest.approx(0, abs=1e-5)
    assert [stored[r["id"]]["when.missing"] for r in some] == [float(not r["when"]) for r in some]

    dates = {"when": Date(parts=["year"], missing=date(1999, 5, 1))}
    make(csv(tmp_path, some), declared(dates=dates), tmp_path / "day")
    assert both(tmp_path / "day")["u0"]["when.year"] == 1999
    assert read_store_schema(tmp_path / "day").dates["when"].missing == date(1999, 5, 1)


def test_dates_and_timestamps_of_parquet_equal_their_text(tmp_path: Path) -> None:
    text = ["2024-02-29T12:30:00", None, "1969-07-20T20:17:40", "2100-01-01T00:00:00"]
    times = pa.array([None if t is None else datetime.fromisoformat(t) for t in text])
    columns = {
        "text": pa.array(text),
        "seconds": times.cast(pa.timestamp("s")),
        "nanoseconds": times.cast(pa.timestamp("ns")),
        "zoned": times.cast(pa.timestamp("us", "Asia/Tokyo")),
        "day": times.cast(pa.date32(), safe=False),
    }
    pq.write_table(pa.table({"id": list("abcd"), **columns}), tmp_path / "rows.parquet")
    parts: list[Any] = ["year", "month", "day", "weekday", "days_since"]
    dates = {name: Date(parts=parts, missing=date(1970, 1, 1)) for name in columns}
    schema = RawSchema(id="id", split=Split(test=0.0), dates=dates)
    make(tmp_path / "rows.parquet", schema, tmp_path / "store")
    for row in both(tmp_path / "store").values():
        for part in parts:
            assert len({row[f"{name}.{part}"] for name in columns}) == 1


def bag_of(cell: str, max_values: int) -> list[str]:
    values = [] if cell == "NA" else [value.strip() for value in cell.split("|")]
    return list(dict.fromkeys(value for value in values if value))[:max_values]


def test_a_bag_has_the_codes_of_its_values_in_their_order(tmp_path: Path) -> None:
    some = raws()
    bag = Bag(separator="|", vocabulary=3, max_values=3)
    report = make(csv(tmp_path, some), declared(bags={"tags": bag}), tmp_path / "store")
    counts: dict[str, int] = {}
    for cell in trained(some, "tags"):
        for value in bag_of(cell, 3):
            counts[value] = counts.get(value, 0) + 1
    order = sorted(counts, key=lambda value: (-counts[value], value))[:3]
    assert read_store_schema(tmp_path / "store").bags["tags"].values == order
    code = {value: number for number, value in enumerate(order, start=2)}
    stored = both(tmp_path / "store")
    for row in some:
        codes = [code.get(value, 1) for value in bag_of(row["tags"], 3)]
        assert stored[row["id"]]["tags"] == codes + [0] * (3 - len(codes))
    truncated = sum(len(bag_of(row["tags"], 9)) > 3 for row in some)
    assert f"{truncated} rows have more than 3 values" in "".join(report.warnings)


def test_hashed_values_of_a_bag_have_the_codes_of_a_category(tmp_path: Path) -> None:
    some = [
        {"id": "a", "tags": "x;y;x", "one": "x"},
        {"id": "b", "tags": ";;y", "one": "y"},
        {"id": "c", "tags": " ; ", "one": ""},
    ]
    schema = RawSchema(
        id="id",
        split=Split(test=0.0),
        categories={"one": Category(buckets=50)},
        bags={"tags": Bag(separator=";", buckets=50, max_values=2)},
    )
    make(csv(tmp_path, some), schema, tmp_path / "store")
    stored = both(tmp_path / "store")
    x, y = stored["a"]["one"], stored["b"]["one"]
    assert [stored[row]["tags"] for row in "abc"] == [[x, y], [y, 0], [0, 0]]


ALL = {
    "numbers": {"x": Number(missing="median", indicator=True, standardise=True)},
    "dates": {"when": Date(parts=["month", "hour"], missing="mean", standardise=True)},
    "bags": {"tags": Bag(separator="|", vocabulary=3, max_values=4)},
}


def test_stores_do_not_depend_on_the_size_of_blocks(tmp_path: Path) -> None:
    some = raws()
    source = csv(tmp_path, some)
    make(source, declared(**ALL), tmp_path / "large")
    with small_blocks(600, 2, 2000):
        make(source, declared(**ALL), tmp_path / "small")
    with small_blocks(1 << 20, 1, 1 << 20):
        make(source, declared(**ALL), tmp_path / "windows")
    assert both(tmp_path / "small") == both(tmp_path / "windows")
    assert both(tmp_path / "large").keys() == both(tmp_path / "small").keys()


def test_new_rows_and_rows_of_a_request_are_encoded_as_the_store_to_the_bit(tmp_path: Path) -> None:
    some = raws()
    schema = declared(**ALL, categories={"y": Category(quantiles=5)})
    for row in some:
        row["y"] = row["x"]
    make(csv(tmp_path, some), schema, tmp_path / "store")
    prepare_like([csv(tmp_path, some, "new.csv")], tmp_path / "store", tmp_path / "new")
    stored, new = both(tmp_path / "store"), both(tmp_path / "new")
    assert new == stored
    fitted = read_store_schema(tmp_path / "store")
    assert read_store_schema(tmp_path / "new").digest() == fitted.digest()
    inputs = fitted.inputs()
    assert inputs["numbers"] == ["x", "x.missing", "when.month", "when.hour"]
    encoder = RowEncoder(fitted, inputs)
    assert encoder.columns == {"x": "number", "when": "date", "y": "number", "tags": "bag"}
    batch = encoder.encode({name: [row[name] for row in some] for name in encoder.columns})
    assert batch.inputs["bags"].shape == (ROWS, 1, 4)
    for n, row in enumerate(some):
        expected = stored[row["id"]]
        assert batch.inputs["numbers"][n].tolist() == [expected[c] for c in inputs["numbers"]]
        assert batch.inputs["ids"][n].tolist() == [expected["y"]]
        assert batch.inputs["bags"][n].tolist() == [expected["tags"]]
    encoder.encode({"x": [1.0], "when": ["2020-01-01"], "y": [1.0], "tags": ["never|seen"]})
    assert encoder.unseen["tags"] > 0


@pytest.mark.parametrize(
    ("columns", "cell", "problem"),
    [
        ({"dates": {"x": Date(parts=["year"])}}, "", "'x': expected a date in every row, got 1"),
        (
            {"dates": {"x": Date(parts=["year"])}},
            "soon",
            "ISO 8601.*got 1 rows.*if they are written in another way, set its",
        ),
        ({"dates": {"x": Date(parts=["year"], format="%d.%m.%Y")}}, "2020-01-01", "'%d.%m.%Y'"),
        ({"dates": {"x": Date(parts=["year"])}}, "9999-12-31", "got 1 rows"),
        ({"categories": {"x": Category(quantiles=3)}}, "inf", "expected finite numbers, got 1"),
        ({"categories": {"x": Category(quantiles=3)}}, "soon", "expected numbers, got text"),
        ({"numbers": {"x": Number(missing="mean")}}, "nan", "expected finite numbers"),
    ],
)
def test_cells_of_another_kind_are_counted_and_never_quoted(
    tmp_path: Path, columns: dict[str, Any], cell: str, problem: str
) -> None:
    value = "2020-01-01" if "dates" in columns else "1"
    if "format" in problem or "%d" in problem:
        value = "01.01.2020"
    some = [{"id": str(n), "x": value} for n in range(9)] + [{"id": "bad", "x": cell}]
    schema = RawSchema(id="id", split=Split(test=0.0), **columns)
    with pytest.raises(DataError, match=problem) as caught:
        make(csv(tmp_path, some), schema, tmp_path / "store")
    assert "soon" not in str(caught.value) and not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[numbers]\nx = { missing = 'mode' }",
            r"numbers\.x\.missing: expected a finite number, .* got 'mode'",
        ),
        ("[dates.x]\nparts = ['year']\nmissing = 'soon'", r"dates\.x\.missing: expected a day"),
        ("[dates.x]\nparts = ['year']\nmissing = 7", r"dates\.x\.missing: expected a day"),
        ("[numbers]\nx = { indicator = true }", "indicator needs missing"),
        ("[categories]\nx = { quantiles = 4, buckets = 3 }", "exactly one of"),
        ("[categories]\nx = { quantiles = 1 }", "quantiles"),
        ("[dates.x]\nparts = []", "dates.x.parts"),
        ("[dates.x]\nparts = ['year', 'year']", "each part once"),
        ("[dates.x]\nparts = ['year']\nformat = '%Q'", "format: expected one"),
        ("[bags]\nx = { vocabulary = 3 }", "bags.x.separator"),
        ("[bags]\nx = { separator = '|' }", "exactly one of buckets and vocabulary"),
        ("[bags]\nx = { separator = '|', buckets = 3, max_values = 65 }", "max_values"),
        ("[source]\ndelimiter = ';;'\n[numbers]\nx = {}", "source.delimiter"),
        ("[source]\ndelimiter = ','\ndecimal = ','\n[numbers]\nx = {}", "same character"),
        (
            "[numbers]\n'x.missing' = {}\nx = { missing = 0.0, indicator = true }",
            "x.missing is a column, and also made from another one",
        ),
    ],
)
def test_a_wrong_declaration_is_refused_by_key(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "schema.toml").write_text(f'id = "id"\n{text}\n')
    with pytest.raises(ConfigError, match=problem):
        read_raw_schema(tmp_path / "schema.toml")


def test_semicolons_and_decimal_commas_are_read_and_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id;y;x\n" + "".join(f"r{n};{n % 2},0;{n},5\n" for n in range(9)))
    schema = RawSchema(
        id="id",
        label="y",
        split=Split(test=0.0),
        source=Source(delimiter=";", decimal=","),
        numbers={"x": Number()},
    )
    make(path, schema, tmp_path / "store")
    row = both(tmp_path / "store")["r3"]
    assert row["x"] == 3.5 and row["label"] == 1.0
    encoder = RowEncoder(read_store_schema(tmp_path / "store"), {"numbers": ["x"]})
    assert encoder.encode({"x": ["3,5"]}).inputs["numbers"].tolist() == [[3.5]]
    other = schema.model_copy(update={"source": Source()})
    with pytest.raises(DataError, match=r"another character .*, set source\.delimiter"):
        make(path, other, tmp_path / "other")
    path.write_text("id;y;x\n" + "".join(f"r{n};{n % 2};{n}.5\n" for n in range(9)))
    with pytest.raises(DataError, match=r"';' is between its fields, set source\.delimiter"):
        make(path, other, tmp_path / "other")


def test_a_store_without_the_new_columns_has_the_schema_and_digest_of_earlier_releases(
    tmp_path: Path,
) -> None:
    schema = declared(numbers={"x": Number(missing=0.0)}, categories={"tags": Category(buckets=9)})
    make(csv(tmp_path, raws()), schema, tmp_path / "store")
    fitted = open_store(tmp_path / "store").schema
    dumped = fitted.model_dump(mode="json", exclude={"missing"})
    assert list(dumped) == [
        "id", "label", "split", "format", "source", "label_type", "numbers", "categories",
        "labelled", "rows",
    ]  # fmt: skip
    assert list(dumped["source"]) == ["format", "names", "missing"]
    assert list(dumped["numbers"]["x"]) == ["missing", "log", "standardise", "mean", "deviation"]
    assert list(dumped["categories"]["tags"]) == ["buckets", "vocabulary", "min_count", "values"]


def test_the_schema_of_an_earlier_release_has_the_digest_that_it_computed() -> None:
    schema = StoreSchema.model_validate(
        {
            "id": "id",
            "label": "y",
            "label_type": "class",
            "numbers": {
                "x": {
                    "missing": 0.0,
                    "log": True,
                    "standardise": True,
                    "mean": 1.5,
                    "deviation": 2.0,
                },
                "p": {},
            },
            "categories": {
                "c": {"buckets": 9},
                "w": {"vocabulary": 3, "min_count": 2, "values": ["a", "b"]},
            },
            "rows": {"train": 3, "test": 1},
        }
    )
    expected = "d9093c37f11ed07a9f6a0b88da5827b4fe3818ee673617f0a4b21ef3de08b821"
    assert schema.digest() == expected
