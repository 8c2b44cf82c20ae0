"""Guesses what a raw column is, from the values of some of its rows.

A guess is a declaration for `schema.toml` and the reason for it. It opens no files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from celu.config.columns import MAX_VALUES
from celu.prepare.encoders.dates import parse_date
from celu.prepare.number_text import PLAIN, STYLES, NumberStyle, styles_of, units_of
from celu.prepare.parsing import classify_cell

Table = Literal["numbers", "categories", "dates", "bags"]

# Texts that mean a missing value where all other values of a column are numbers or dates.
MISSING_TEXTS = frozenset(
    ["?", "-", "--", ".", "#N/A", "N/A", "n/a", "NA", "na", "NaN", "nan", "NULL", "null", "None",
     "inf", "-inf", "Inf", "-Inf", "Infinity", "-Infinity"]
)  # fmt: skip
DATE_FORMATS = (
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%Y/%m/%d", "%Y/%m/%d %H:%M:%S", "%d-%m-%Y",
    "%m-%d-%Y", "%d %b %Y", "%b %d, %Y",
)  # fmt: skip
SEPARATORS = "|;,"
_FRACTION = r"[+-]?\d*[.,]\d+(e[+-]?\d+)?"
_DATE = r"(\d{4}[-/]\d\d[-/]\d\d|\d\d?[./-]\d\d?[./-]\d{4})([T ].*)?"
_GROUPED = r"[^\w\s]?[+-]?\d{1,3}([., ']\d{3})+([.,]\d+)?"
_NO_ID = re.compile(f"{_FRACTION}|{_DATE}|{_GROUPED}")
_YEARS = (1900, 2100)  # of digits that are taken for a day
_MAX_CODES = 20  # distinct integers that may be codes
_MAX_VOCABULARY = 10_000
_BUCKETS = 100_000
_SKEW = 50  # times the median
_IDENTIFIES = 0.5  # distinct values for each row, of a text that is no feature
_MIN_IDENTIFIES = 100
_MOSTLY = 0.95  # of the cells are numbers, in a column of numbers with some other texts
_MAX_STRAY, _MAX_STRAY_TEXT = 10, 40  # distinct texts, characters
_UNITS_DIFFER = "numbers with different units, or some with and some without: write them alike"
_STYLED = 2_000  # values of a column by which the style of its numbers is chosen


@dataclass(frozen=True)
class ColumnSample:
    """The distinct values of a column in some rows, and how many rows have each.

    Of a column of lists, `counts` are those of their values, and `longest` is the longest list.
    """

    name: str
    rows: int
    counts: Mapping[str, int]  # without empty ones
    longest: int = 0
    style: NumberStyle = PLAIN

    @property
    def num_present(self) -> int:
        """The number of rows with a value."""
        return sum(self.counts.values())

    @property
    def identifies_rows(self) -> bool:
        """Whether every row has a value of its own: text or an integer."""
        is_unique = len(self.counts) == self.num_present == self.rows > 1
        return (
            is_unique
            and not self.longest
            and not any(_NO_ID.fullmatch(value) for value in self.counts)
        )


@dataclass(frozen=True)
class Guess:
    """A declaration as TOML, in a table of `schema.toml`; no table if the column is left out.

    `missing_texts` are texts of the column that mean a missing value.
    """

    table: Table | None
    declaration: str
    why: str
    missing_texts: frozenset[str] = frozenset()


def guess(sample: ColumnSample, names: Sequence[str]) -> Guess:
    """What a column is; `names` are those of all columns."""
    counts = sample.counts
    if not counts:
        return Guess(None, "", "every value is missing")
    if len(counts) == 1:
        return Guess(None, "", "all rows have the same value")
    if sample.longest:
        return _guess_list(sample)
    values = {value: count for value, count in counts.items() if value not in MISSING_TEXTS}
    texts = frozenset(counts.keys() - values.keys())
    stray = _stray_texts(sample, values)
    if stray:
        others = {value: count for value, count in values.items() if value not in stray}
        typed = _guess_typed(sample, others, texts | stray.keys(), names)
        if typed is not None and typed.table is not None:
            listed = ", ".join(map(_shown, sorted(stray)))
            why = f"; text in {sum(stray.values()):,} rows is taken for missing: {listed}"
            return replace(typed, why=typed.why + why)
    found = _guess_typed(sample, values, texts, names)
    return found or _guess_bag(sample) or _guess_category(sample)


def _guess_typed(
    sample: ColumnSample, values: Mapping[str, int], texts: frozenset[str], names: Sequence[str]
) -> Guess | None:
    """A date or a number, if all values but those that mean a missing one are."""
    if not values:
        return None
    missing = sample.rows - sum(values.values())
    # A schema is refused if two columns of the store would have the same name.
    fill = ['missing = "median"'] if missing else []
    fill += ["indicator = true"] if missing and f"{sample.name}.missing" not in names else []
    share = f", {missing / sample.rows:.1%} missing" if missing else ""
    dated = _guess_date(sample.name, values, fill, share, names)
    are_numbers = all(_is_number(value, sample.style) for value in values)
    are_styled = all(styles_of(value, "") for value in values)
    if dated is None and (are_numbers or are_styled) and len(set(map(units_of, values))) > 1:
        return Guess(None, "", _UNITS_DIFFER)
    if dated is None and are_numbers:
        if any(re.fullmatch(r"0\d+", value) for value in values):
            return None  # codes such as postal ones
        dated = _guess_number(values, sample, fill, share)
    if dated is None and are_styled:
        why = "numbers with other separators or units than the other columns: write them alike"
        return Guess(None, "", why)
    if dated is None:
        return None
    return Guess(dated.table, dated.declaration, dated.why, texts)


def _stray_texts(sample: ColumnSample, values: Mapping[str, int]) -> dict[str, int]:
    """The few texts of a column whose other values are numbers, and how many rows have each."""
    stray = {v: n for v, n in values.items() if not _is_number(v, sample.style)}
    if (
        not stray
        or len(stray) > _MAX_STRAY
        or sum(stray.values()) > (1 - _MOSTLY) * sum(values.values())
        or any(len(text) > _MAX_STRAY_TEXT or styles_of(text, "") for text in stray)
        or any(re.fullmatch(r"0\d+", value) for value in values)
    ):
        return {}
    return stray


def find_style(samples: Sequence[ColumnSample], delimiter: str) -> NumberStyle:
    """The style in which the most columns are numbers; `delimiter` is between the fields."""
    of_columns = [_styles(sample, delimiter) for sample in samples]
    fits = {style: sum(style in found for found in of_columns) for style in STYLES}
    best = max(STYLES, key=lambda style: fits[style])
    units = {unit for found in of_columns for unit in found.get(best, ())}
    return replace(best, units=tuple(sorted(units)))


def _styles(sample: ColumnSample, delimiter: str) -> dict[NumberStyle, tuple[str, ...]]:
    """The styles, without units, in which the values are numbers, each with the column's units."""
    found: dict[NumberStyle, tuple[str, ...]] | None = None
    values = [value for value in sample.counts if value not in MISSING_TEXTS]
    num_stray = 0
    for value in islice(values, _STYLED):
        of_value = {replace(style, units=()): style.units for style in styles_of(value, delimiter)}
        if not of_value and num_stray < _MAX_STRAY:  # perhaps one of few: see `_stray_texts`
            num_stray += 1
            continue
        found = of_value if found is None else dict(found.items() & of_value.items())
        if not found:
            break
    return found or {}


def _is_number(text: str, style: NumberStyle) -> bool:
    return classify_cell(text.encode(), style) == "number"


def _guess_number(
    values: Mapping[str, int], sample: ColumnSample, fill: list[str], share: str
) -> Guess | None:
    parsed = np.array([sample.style.parse(value) for value in values])
    if not np.isfinite(parsed).all():
        return None
    low, high = float(parsed.min()), float(parsed.max())
    median = float(np.median(np.repeat(parsed, list(values.values()))))
    are_integers = bool((parsed == np.floor(parsed)).all())
    if set(parsed.tolist()) == {0.0, 1.0}:
        return Guess("numbers", _inline(fill), f"0 or 1{share}")
    why = f"{'integers' if are_integers else 'numbers'} from {low:g} to {high:g}{share}"
    options = [*fill]
    if low >= 0 and high > _SKEW * (median + 1):
        options.append("log = true")
        why += f"; most are small (median {median:g}), hence the logarithm"
    if are_integers and len(values) <= _MAX_CODES:
        why += f"; {len(values)} distinct ones: if they are codes, move it to [categories]"
    return Guess("numbers", _inline([*options, "standardise = true"]), why)


def _guess_date(
    name: str, values: Mapping[str, int], fill: list[str], share: str, names: Sequence[str]
) -> Guess | None:
    formats = list(_date_formats(list(values)))
    if not formats:
        return None
    format_ = formats[0]
    seconds = np.array([parse_date(value.strip(), format_) for value in values])
    has_times = bool((seconds % 86_400 != 0).any())
    parts = ["year", "month", "weekday", *(["hour"] if has_times else []), "days_since"]
    if any(f"{name}.{part}" in names for part in parts):
        return None
    first = np.array([seconds.min()]).astype("datetime64[s]").astype("datetime64[D]")[0]
    lines = [f"parts = [{', '.join(map(_text, parts))}]"]
    lines += [f"format = {_text(format_)}"] if format_ is not None else []
    lines += [f"since = {first}", *fill, "standardise = true"]
    why = ("times" if has_times else "days") + (" in ISO 8601" if format_ is None else "") + share
    if len(formats) > 1:
        why += f"; the format may also be {_text(formats[1] or '')}: check it"
    return Guess("dates", "\n".join(lines), why)


def _date_formats(values: list[str]) -> Iterator[str | None]:
    """The formats that fit all values, None for ISO 8601."""
    stripped = [value.strip() for value in values]
    if all(value.isdigit() for value in stripped):
        is_day = all(
            len(value) == 8
            and _YEARS[0] <= int(value[:4]) < _YEARS[1]
            and not np.isnan(parse_date(value, None))
            for value in stripped
        )
        if is_day:
            yield None
        return
    for format_ in (None, *DATE_FORMATS):
        if all(not np.isnan(parse_date(value, format_)) for value in stripped):
            yield format_
            if format_ is None:
                return


def _guess_bag(sample: ColumnSample) -> Guess | None:
    """Several values in a cell, and the same ones again and again.

    Their number differs from cell to cell, unless the separator stands in no ordinary text.
    """
    for separator in SEPARATORS:
        lengths: Counter[int] = Counter()
        occurrences: Counter[str] = Counter()
        for cell, count in sample.counts.items():
            values = [value.strip() for value in cell.split(separator)]
            lengths[len(values)] += count
            for value in values:
                occurrences[value] += count
        several = sum(count for length, count in lengths.items() if length > 1)
        longest = max(map(len, occurrences))
        if (
            several >= 0.1 * sample.num_present
            and (len(lengths) > 1 or (separator != "," and len(occurrences) < len(sample.counts)))
            and len(occurrences) <= 0.5 * sum(occurrences.values())
            and longest <= 40
        ):
            most = min(max(lengths), MAX_VALUES)
            options = [
                f"separator = {_text(separator)}",
                _codes(len(occurrences)),
                f"max_values = {most}",
            ]
            why = f"up to {max(lengths)} values in a field, {len(occurrences):,} distinct ones"
            return Guess("bags", _inline(options), why)
    return None


def _guess_list(sample: ColumnSample) -> Guess:
    """Lists of values; in text, such as a request, a separator is between them."""
    unused = (s for s in (*SEPARATORS, "/", "#") if not any(s in value for value in sample.counts))
    options = [
        f"separator = {_text(next(unused, '||'))}",
        _codes(len(sample.counts)),
        f"max_values = {min(sample.longest, MAX_VALUES)}",
    ]
    why = f"lists of up to {sample.longest} values, {len(sample.counts):,} distinct ones"
    return Guess("bags", _inline(options), f"{why}; the separator is for text, as in requests")


def _guess_category(sample: ColumnSample) -> Guess:
    distinct, present = len(sample.counts), sample.num_present
    if distinct > max(_MIN_IDENTIFIES, _IDENTIFIES * present):
        numbers = sum(n for v, n in sample.counts.items() if _is_number(v, sample.style))
        if present / 2 <= numbers < present:
            why = f"numbers in {numbers:,} of {present:,} rows, and text in the others"
            return Guess(None, "", f"{why}: correct it, or name what means missing in [source]")
        why = f"{distinct:,} distinct values in {present:,} rows: it names rows, or is free text"
        return Guess(None, "", why)
    missing = sample.rows - present
    share = f", {missing / sample.rows:.1%} missing" if missing else ""
    options = [_codes(distinct)]
    has_rare = 1 in sample.counts.values()
    if has_rare and distinct <= _MAX_VOCABULARY:
        options.append("min_count = 2")
    return Guess("categories", _inline(options), f"text, {distinct:,} distinct values{share}")


def _codes(distinct: int) -> str:
    if distinct > _MAX_VOCABULARY:
        return f"buckets = {_BUCKETS}"
    return f"vocabulary = {_MAX_VOCABULARY}"


def _inline(options: list[str]) -> str:
    return f"{{ {', '.join(options)} }}" if options else "{}"


def _shown(text: str) -> str:
    """A text in a comment, on one line."""
    return '"' + "".join(c if c.isprintable() else "?" for c in text) + '"'


def _text(value: str) -> str:
    return f'"{value}"'
