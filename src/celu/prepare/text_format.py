"""What the name and the first lines of a raw file say: its format, and what separates fields."""

from __future__ import annotations

import csv
import gzip
import zlib
from pathlib import Path

FORMATS = {".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".parquet": "parquet"}
DELIMITERS = (",", ";", "\t", "|")  # that are noticed where another one is declared
_HEAD_BYTES = 1 << 16


def format_of(path: Path) -> tuple[bool, str | None]:
    """Whether a file is compressed with gzip, and the format that its name says, if any."""
    is_gzip = path.suffix.lower() == ".gz"
    return is_gzip, FORMATS.get((path.with_suffix("") if is_gzip else path).suffix.lower())


def usual_delimiter(path: Path, format_: str | None = None) -> str:
    """The character between the fields of a file of this format, by default that of its name."""
    return "\t" if (format_ or format_of(path)[1]) == "tsv" else ","


def find_delimiter(path: Path) -> str | None:
    """The delimiter of a text file, if it is not the one that its name says."""
    is_gzip, format_ = format_of(path)
    if format_ not in ("csv", "tsv") or not path.is_file():
        return None  # `RawFile` says what is wrong
    usual = usual_delimiter(path)
    try:
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return None
    lines = head.decode("utf-8", "replace").splitlines()
    if len(head) == _HEAD_BYTES:
        lines = lines[:-1]
    widths: dict[str, int] = {}
    for delimiter in DELIMITERS:
        try:
            found = {len(row) for row in csv.reader(lines, delimiter=delimiter) if row}
        except csv.Error:
            continue
        if len(found) == 1:
            widths[delimiter] = found.pop()
    if widths.get(usual, 1) > 1 or not widths:
        return None
    best = max(widths, key=lambda delimiter: widths[delimiter])
    return best if widths[best] > 1 and best != usual else None
