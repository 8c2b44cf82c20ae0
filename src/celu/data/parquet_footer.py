"""The sizes that a Parquet file declares for its columns, read from its footer.

pyarrow ends the whole process when the metadata of a column contradicts itself: its accessor
`RowGroupMetaData.column` does not catch the exception. So the footer, a struct in Thrift's compact
protocol, is read here. Nothing else of the file is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_MAGIC = b"PAR1"
_MAX_LEVELS = 32
_MAX_VARINT_BYTES = 10
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class ColumnSize(NamedTuple):
    """One column of one row group, and its bytes in the file and in memory, as declared."""

    row_group: int
    name: str
    compressed: int
    uncompressed: int


def column_sizes(path: Path) -> Iterator[ColumnSize]:
    """The declared sizes; raises OSError or ValueError if the footer cannot be read."""
    with path.open("rb") as file:
        num_bytes = file.seek(0, 2)
        file.seek(max(0, num_bytes - 8))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > num_bytes - 12:
            raise ValueError("no Parquet footer at its end")
        file.seek(num_bytes - 8 - length)
        footer = _Thrift(file.read(length)).struct()
    for number, group in enumerate(_typed(footer.get(4, []), list)):
        for chunk in _typed(_typed(group, dict).get(1, []), list):
            column = _typed(_typed(chunk, dict).get(3, {}), dict)
            names = [_typed(part, bytes) for part in _typed(column.get(3, []), list)]
            yield ColumnSize(
                number,
                b".".join(names).decode("utf-8", "replace"),
                _typed(column.get(7, 0), int),
                _typed(column.get(6, 0), int),
            )


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError("damaged Parquet footer")
    return value


class _Thrift:
    """Reads values in Thrift's compact protocol; a struct is a dict by field number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, levels: int = _MAX_LEVELS) -> dict[int, Any]:
        """A struct; raises ValueError if the data ends in the middle of it."""
        found: dict[int, Any] = {}
        field = 0
        while header := self._take(1)[0]:
            field = field + (header >> 4) if header >> 4 else self._zigzag()
            found[field] = self._value(header & 15, levels)
        return found

    def _value(self, kind: int, levels: int, *, in_list: bool = False) -> Any:
        if levels == 0:
            raise ValueError("damaged Parquet footer")
        if kind in (_TRUE, _FALSE):
            return self._take(1)[0] == _TRUE if in_list else kind == _TRUE
        if kind == _BYTE:
            return self._take(1)[0]
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind in (_DOUBLE, _BINARY):
            return self._take(8 if kind == _DOUBLE else self._varint())
        if kind in (_LIST, _SET):
            header = self._take(1)[0]
            size = header >> 4 if header >> 4 < 15 else self._varint()
            # Every element takes at least a byte, so a false size ends with the data.
            return [self._value(header & 15, levels - 1, in_list=True) for _ in range(size)]
        if kind == _STRUCT:
            return self.struct(levels - 1)
        raise ValueError("damaged Parquet footer")  # a map, too: Parquet has none

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for place in range(_MAX_VARINT_BYTES):
            byte = self._take(1)[0]
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                return value
        raise ValueError("damaged Parquet footer")

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise ValueError("the Parquet footer ends too early")
        self._at += size
        return taken
