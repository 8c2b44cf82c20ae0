"""How numbers are written as text: the decimal character, separators of thousands, units.

It turns such text into what Python and Arrow read as a number. It does not guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow.compute as pc

from celu.config.schema import Source

_SPACES = {" ": "[ \u00a0\u202f]", "'": "['\u2019]"}  # and what typography writes for them
_UNREADABLE = "?"


@dataclass(frozen=True)
class NumberStyle:
    """How the numbers of a file are written; by default as in Python."""

    decimal: str = "."
    thousands: str | None = None
    units: tuple[str, ...] = ()

    @staticmethod
    def of(source: Source) -> NumberStyle:
        """The style that a schema declares."""
        return NumberStyle(source.decimal, source.thousands, tuple(source.units))

    @property
    def declaration(self) -> str:
        """The lines of `[source]` that declare it, joined by "and"."""
        found = [f'decimal = "{self.decimal}"'] if self.decimal != "." else []
        found += [f'thousands = "{self.thousands}"'] if self.thousands is not None else []
        if self.units:
            listed = ", ".join(f'"{unit}"' for unit in self.units)
            found.append(f"units = [{listed}]")
        return " and ".join(found)

    @property
    def is_for_arrow(self) -> bool:
        """Whether Arrow's CSV parser can read it."""
        return self.thousands is None and not self.units

    @cached_property
    def _steps(self) -> list[tuple[str, str]]:
        """Patterns and replacements, in order; between them thousands are removed."""
        units = "|".join(re.escape(unit) for unit in sorted(self.units, key=len, reverse=True))
        leading = [(rf"^([+-]?)\s*(?:{units})\s*([+-]?)", r"\1\2"), (rf"\s*(?:{units})$", "")]
        return leading if units else []

    @property
    def _group(self) -> str:
        thousands = self.thousands or ""
        return _SPACES.get(thousands, re.escape(thousands))

    @property
    def _grouped(self) -> str:
        """Matches whole numbers in groups of three digits, perhaps with a fraction."""
        return (
            rf"^[+-]?[0-9]{{1,3}}(?:{self._group}[0-9]{{3}})+(?:{re.escape(self.decimal)}[0-9]*)?$"
        )

    def parse(self, text: str) -> float:
        """The number that a text is; raises ValueError if it is none."""
        text = text.strip()
        for pattern, replacement in self._steps:
            text = re.sub(pattern, replacement, text)
        if self.thousands is not None and re.fullmatch(self._grouped, text):
            text = re.sub(self._group, "", text)
        if self.decimal != ".":
            text = text.replace(".", _UNREADABLE).replace(self.decimal, ".")
        if not text.isascii() or "_" in text:  # which Python reads, and Arrow does not
            raise ValueError
        return float(text)

    def plain(self, texts: Any) -> Any:
        """An Arrow array of texts, rewritten so that it can be cast to numbers."""
        texts = pc.utf8_trim_whitespace(texts)
        for pattern, replacement in self._steps:
            texts = pc.replace_substring_regex(texts, pattern, replacement)
        if self.thousands is not None:
            without = pc.replace_substring_regex(texts, self._group, "")
            texts = pc.if_else(pc.match_substring_regex(texts, self._grouped), without, texts)
        if self.decimal != ".":
            texts = pc.replace_substring(texts, ".", _UNREADABLE)
            texts = pc.replace_substring(texts, self.decimal, ".")
        return texts


PLAIN = NumberStyle()
# With separators, the most likely first; which are possible depends on the file's delimiter.
STYLES = (
    PLAIN,
    NumberStyle(",", None),
    NumberStyle(".", ","),
    NumberStyle(",", "."),
    NumberStyle(".", " "),
    NumberStyle(",", " "),
    NumberStyle(".", "'"),
)
_UNIT = re.compile(r"[$\u20ac\u00a3\u00a5%]|\b(?:EUR|USD|GBP|CHF|JPY|CNY)\b")


def units_of(text: str) -> tuple[str, ...]:
    """The signs in a text that may be units of a number."""
    return tuple(sorted(set(_UNIT.findall(text))))


def style_of_all(texts: Sequence[str]) -> NumberStyle | None:
    """The most likely style in which all of some texts are numbers; None if there is none.

    Where a character may be a separator of thousands or the decimal one, it is the former: then it
    is before three digits in all texts.
    """
    units: set[str] = set()
    left = list(STYLES)
    for text in texts:
        found = styles_of(text, "")
        units.update(*(style.units for style in found))
        plain = {replace(style, units=()) for style in found}
        left = [style for style in left if style in plain]
        if not left:
            return None
    grouped = [s for s in left if s.thousands and any(s.thousands in text for text in texts)]
    likely = next(iter([*grouped, *left]), None)
    return None if likely is None else replace(likely, units=tuple(sorted(units)))


def styles_of(text: str, delimiter: str) -> list[NumberStyle]:
    """The styles in which a text is a number, the most likely first; none if it is no number.

    `delimiter` is between the fields of the file, so it is not in its fractions.
    """
    units = units_of(text)
    found = []
    for style in STYLES:
        if style.decimal != delimiter:
            with suppress(ValueError):
                with_units = replace(style, units=units)
                with_units.parse(text)
                found.append(with_units)
    return found
