"""The sizes in a Parquet footer, and footers that are damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.data.parquet_footer import column_sizes
from fuzz.values import mutated_bytes

CONTRADICTORY = Path(__file__).parent / "contradictory.parquet"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    table = pa.table({"a": range(1000), "b": [str(i) for i in range(1000)], "c": [None] * 1000})
    nested = table.append_column("d", pa.array([{"x": 1, "y": [True, False]}] * 1000))
    pq.write_table(nested, tmp_path / "rows.parquet", row_group_size=300, compression="zstd")
    return tmp_path / "rows.parquet"


def test_the_sizes_are_those_that_pyarrow_reads(file: Path) -> None:
    metadata = pq.read_metadata(file)
    expected = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            sizes = column.total_compressed_size, column.total_uncompressed_size
            expected.append((number, column.path_in_schema, *sizes))
    assert list(column_sizes(file)) == expected
    assert len(expected) == 4 * 5


def test_a_damaged_footer_is_read_or_refused(file: Path) -> None:
    random, valid, refused = Random(3), file.read_bytes(), 0
    length = int.from_bytes(valid[-8:-4], "little")
    start = len(valid) - 8 - length
    for _ in range(3000):
        file.write_bytes(valid[:start] + mutated_bytes(random, valid[start:]))
        try:
            list(column_sizes(file))
        except ValueError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    "footer",
    [b"", b"\x49\xfc" + b"\xff" * 9 + b"\x01", b"\x49\x9c" * 500, b"\x1c" * 5000, b"\x18\xff\x7f"],
    ids=["nothing", "a list of 2^63", "lists of structs", "many levels", "text beyond the end"],
)
def test_a_crafted_footer_is_refused(tmp_path: Path, footer: bytes) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="Parquet footer"):
        list(column_sizes(path))


def test_metadata_that_contradicts_itself_is_refused_and_does_not_end_the_process(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[3:]\n"
        "from fuzz.more_files import RAW\n"
        "from celu.prepare.pipeline import Target, prepare\n"
        "prepare([Path(sys.argv[1])], [Target(RAW, Path(sys.argv[2]))])\n"
    )
    tests = str(Path(__file__).parents[1])
    arguments = [str(CONTRADICTORY), str(tmp_path / "store"), tests, *sys.path]
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stderr
    assert "DataError" in ran.stderr and "expected a readable file" in ran.stderr
