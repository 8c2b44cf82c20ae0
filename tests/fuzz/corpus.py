"""The corpus: for each decoder a file of inputs, one per line in base64, the shortest first.

An input is in it because it reaches code that no shorter one does, or because it once failed.
"""

from __future__ import annotations

import base64
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import celu

from .decoders import Decoder, check

FOLDER = Path(__file__).parent / "corpus"
MAX_BYTES = 8 * 1024  # of a file, as text
_SOURCE = str(Path(celu.__file__).parent)


def read_corpus(decoder: Decoder) -> list[bytes]:
    """The inputs of a decoder, without its seeds."""
    path = FOLDER / f"{decoder.file_name}"
    if not path.exists():
        return []
    return [base64.b64decode(line) for line in path.read_text(encoding="ascii").split()]


def extend_corpus(decoder: Decoder, found: Iterable[bytes]) -> int:
    """Add inputs that reach code which seeds and corpus do not; returns how many.

    What is in the corpus stays. It grows to at most `MAX_BYTES`.
    """
    known, reached = read_corpus(decoder), _Reached()
    for data in (*decoder.seeds, *known):
        reached.add(decoder, data)
    added = []
    size = sum(map(_text_bytes, known))
    for data in sorted(set(found), key=lambda data: (len(data), data)):
        if size + _text_bytes(data) <= MAX_BYTES and reached.add(decoder, data):
            added.append(data)
            size += _text_bytes(data)
    if added:
        lines = sorted({*known, *added}, key=lambda data: (len(data), data))
        text = "".join(base64.b64encode(data).decode("ascii") + "\n" for data in lines)
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{decoder.file_name}").write_text(text, encoding="ascii")
    return len(added)


def _text_bytes(data: bytes) -> int:
    return 4 * -(-len(data) // 3) + 1


class _Reached:
    """The branches of celu's source, as pairs of lines, that inputs have reached so far."""

    def __init__(self) -> None:
        self._branches: set[tuple[str, int, int]] = set()
        self._last: dict[FrameType, int] = {}

    def add(self, decoder: Decoder, data: bytes) -> bool:
        """Decode an input; returns whether it reaches a new branch."""
        before = len(self._branches)
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            check(decoder, data)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self._last.clear()
        return len(self._branches) > before

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_SOURCE):
            return None
        if event == "line":
            last = self._last.get(frame, 0)
            self._branches.add((frame.f_code.co_filename, last, frame.f_lineno))
            self._last[frame] = frame.f_lineno
        return self._trace
