"""Rows to evaluate: scores and labels joined by id from files.

Every row that has no partner is counted. Errors name files, columns and counts, never an id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from celu.config.schema import ClassLabel, Source
from celu.errors import ConfigError, DataError
from celu.metrics.names import Output
from celu.metrics.values import Labels, check_labels, check_weights
from celu.prepare.parsing import Kind, parse_labels
from celu.prepare.raw_file import RawFile
from celu.prepare.text_format import find_delimiter
from celu.scores.classes import are_text, number_codes, text_codes
from celu.scores.file import Scores, read_scores
from celu.scores.layout import check_num_rows
from celu.scores.result import RowCounts

HOSTS = "hosts"  # of a scores file: the hosts that took part
_MISSING, _NO_HOST = "(missing)", "(none)"
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SliceColumn:
    """A column to slice by: a code for each row, and the text of each code."""

    codes: npt.NDArray[np.int64]
    values: Sequence[str]


@dataclass(frozen=True)
class Rows:
    """Labelled rows with the scores of one model, or of two; `weights` say how much each counts."""

    output: Output
    scores: npt.NDArray[Any]
    labels: Labels
    counts: RowCounts
    model: str = "model"
    against: npt.NDArray[Any] | None = None
    against_model: str | None = None
    fallback: _Mask | None = None
    by: Mapping[str, SliceColumn] = field(default_factory=dict)
    weights: npt.NDArray[np.float64] | None = None


class _Labelled(NamedTuple):
    """A labels file: ids, labels (NaN if missing), columns to slice by, and weights of rows."""

    ids: Any
    labels: Labels
    slices: dict[str, SliceColumn]
    weights: npt.NDArray[np.float64] | None = None


def rows_from_files(
    scores: Path,
    labels: Path | None,
    *,
    by: Sequence[str] = (),
    against: Path | None = None,
    id_column: str = "id",
    label_column: str = "label",
    weight_column: str | None = None,
) -> Rows:
    """Read and join files by id; raises ConfigError or DataError.

    Without `labels`, those in the scores file are used, which a run's own scores have. Their
    weights, too, unless `weight_column` names others. `by` names columns of the labels file, or
    "hosts": the column of the scores file, unless the labels file has one of that name.
    """
    used = [id_column, label_column, *by]
    if weight_column in (id_column, label_column):
        raise ConfigError(
            f"--weight: expected a column other than the id and the label, got {weight_column!r}"
        )
    if len(set(used)) != len(used):
        raise ConfigError(
            f"--by: expected columns other than the id and the label, each once, got "
            f"{', '.join(by) or 'none'} with the id {id_column!r} and the label {label_column!r}"
        )
    scored = read_scores(scores)
    other = None if against is None else read_scores(against)
    if other is not None:
        _check_same_output(scored, other)
    raw = None
    if labels is not None:
        raw = RawFile(labels, Source(delimiter=find_delimiter(labels)))
    by_hosts = HOSTS in by and (raw is None or HOSTS not in raw.names())
    columns = [name for name in by if not (by_hosts and name == HOSTS)]
    if raw is None:
        labelled = _own_labels(scored, columns, weight_column)
    else:
        labelled = _read_labels(
            raw, id_column, label_column, columns, weight_column, scored.classes
        )
    ids, values, slices, weights = labelled
    at = _positions(scored.ids, ids)  # of each score's label, -1 if there is none
    is_labelled = at >= 0
    is_labelled[is_labelled] = ~np.isnan(values[at[is_labelled]])
    is_used, other_at = is_labelled, None
    num_labelled, num_scored, not_in_both = (
        int((~np.isnan(values)).sum()),
        int(is_labelled.sum()),
        0,
    )
    if other is not None:
        other_at = _positions(scored.ids, other.ids)
        is_used = is_labelled & (other_at >= 0)
        other_labels = _positions(other.ids, ids)
        other_labelled = other_labels[other_labels >= 0]
        num_other = int((~np.isnan(values[other_labelled])).sum())
        num_scored += num_other - int(is_used.sum())  # by one of the two, or by both
        not_in_both = num_scored - int(is_used.sum())
    counts = RowCounts(
        evaluated=int(is_used.sum()),
        without_label=int((~is_labelled).sum()),
        without_score=num_labelled - num_scored,
        not_in_both=not_in_both,
    )
    if not counts.evaluated:
        raise DataError(
            f"{scores}: expected rows with a label in {labels or scores}, got none of "
            f"{len(scored):,}; check the id column (--id) and that both files are of the same rows"
        )
    at = at[is_used]
    classes = scored.scores.shape[1] if scored.scores.ndim > 1 else None
    found = {name: SliceColumn(slices[name].codes[at], slices[name].values) for name in columns}
    if by_hosts:
        found[HOSTS] = _hosts_column(scored.hosts.filter(pa.array(is_used)))
    used_labels = values[at]
    check_labels(
        f"{labels or scores}: column {label_column!r}", scored.output, used_labels, classes
    )
    return Rows(
        scored.output,
        scored.scores[is_used],
        used_labels,
        counts,
        scored.model,
        None if other is None or other_at is None else other.scores[other_at[is_used]],
        None if other is None else other.model,
        scored.fallback[is_used],
        {name: found[name] for name in by},
        _own_weights(scored, other, is_used, other_at) if weights is None else weights[at],
    )


def _own_weights(
    scored: Scores, other: Scores | None, is_used: _Mask, other_at: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.float64] | None:
    """The weights of these rows in the scores files, if one of the two has them."""
    if scored.weights is not None:
        return scored.weights[is_used]
    if other is None or other.weights is None or other_at is None:
        return None
    return other.weights[other_at[is_used]]


def _check_same_output(scored: Scores, other: Scores) -> None:
    ours, theirs = scored.scores.shape[1:], other.scores.shape[1:]
    if (scored.output, ours, scored.classes) != (other.output, theirs, other.classes):
        raise DataError(
            f"{other.path}: expected the output of {scored.path}, {scored.output} {list(ours)}, "
            f"got {other.output} {list(theirs)}, or other classes; compare models of the same task"
        )


def _own_labels(scored: Scores, by: Sequence[str], weight: str | None) -> _Labelled:
    """The labels of a scores file that has them."""
    if scored.labels is None:
        raise ConfigError(
            f"--labels: expected the file of the labels: {scored.path} has scores only; the scores "
            "of a run's own held-out rows have labels too"
        )
    if by:
        raise ConfigError(f"--by: expected --labels, the file with the columns {', '.join(by)}")
    if weight is not None:
        raise ConfigError(f"--weight: expected --labels, the file with the column {weight}")
    return _Labelled(scored.ids, scored.labels, {})


def _read_labels(
    raw: RawFile,
    id_column: str,
    label_column: str,
    by: Sequence[str],
    weight: str | None,
    classes: Sequence[ClassLabel] | None,
) -> _Labelled:
    path = raw.path
    kinds: dict[str, Kind] = {id_column: "text", label_column: "label"}
    kinds |= dict.fromkeys(by, "category")
    if weight is not None:
        if weight in by:
            raise ConfigError(f"--by: expected columns other than the weight {weight!r}")
        kinds[weight] = "number"
    parts: dict[str, list[Any]] = {name: [] for name in kinds}
    num_rows = 0
    for block in raw.blocks(kinds):
        num_rows += block.num_rows
        check_num_rows(path, num_rows)
        for name, arrays in parts.items():
            arrays.append(block.columns[name])
    ids = pa.chunked_array([part.cast(pa.large_string()) for part in parts[id_column]])
    ids = ids.combine_chunks()
    repeated = len(ids) - len(ids.unique())
    for problem, count in (("rows without one", ids.null_count), ("repeated ids", repeated)):
        if count:
            raise DataError(
                f"{path}: column {id_column!r}: expected each id once, got {count:,} {problem}; "
                "correct the file or choose the column with --id"
            )
    slices = {name: _slice_column(parts[name]) for name in by}
    weights = None
    if weight is not None:  # null becomes NaN
        weights = pa.chunked_array(parts[weight]).to_numpy().astype(np.float64)
        check_weights(f"{path}: column {weight!r}", weights)
    where = f"{path}: column {label_column!r}"
    has_text = pa.types.is_dictionary(parts[label_column][0].type)  # else codes, as in a store
    if classes is not None and are_text(classes) and has_text:
        given = pa.chunked_array(parts[label_column]).cast(pa.string())
        texts = pc.utf8_trim_whitespace(given).to_numpy()
        return _Labelled(ids, text_codes(where, texts, classes), slices, weights)
    parsed = [parse_labels(part) for part in parts[label_column]]
    num_text = sum(part.num_text for part in parsed)
    if num_text:
        raise DataError(
            f"{where}: expected numbers, got text in {num_text:,} rows; the model was trained on "
            "numbers: choose another label column"
        )
    given = pa.chunked_array([part.values for part in parsed])
    labels = given.to_numpy().astype(np.float64)  # null becomes NaN
    not_finite = int((~np.isfinite(labels)).sum()) - given.null_count
    if not_finite:
        raise DataError(
            f"{where}: expected finite labels, or nothing where there is "
            f"none, got NaN or Inf in {not_finite:,} rows; correct the file"
        )
    return _Labelled(ids, number_codes(where, labels, classes), slices, weights)


def _slice_column(parts: list[Any]) -> SliceColumn:
    column = pa.chunked_array(parts).unify_dictionaries().combine_chunks()
    values = column.dictionary.to_pylist()
    codes = column.indices.cast(pa.int64()).fill_null(len(values)).to_numpy()
    return SliceColumn(codes, [*values, _MISSING])


def _hosts_column(hosts: Any) -> SliceColumn:
    """The hosts that took part in each score, from a dictionary of their names."""
    names = hosts.dictionary.to_pylist()
    return SliceColumn(hosts.indices.cast(pa.int64()).to_numpy(), [n or _NO_HOST for n in names])


def _positions(ids: Any, among: Any) -> npt.NDArray[np.int64]:
    """Where each id is among others; -1 if it is not."""
    found: npt.NDArray[np.int64] = (
        pc.index_in(ids, value_set=among).cast(pa.int64()).fill_null(-1).to_numpy()
    )
    return found
