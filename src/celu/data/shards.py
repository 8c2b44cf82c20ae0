"""Shards of an alignment: ranges of tags that are aligned one by one, by any scheduler, and merged.

    .ALIGNMENT.shards/3-of-64/shard.json    what was aligned, and digests of the files beside it
    .ALIGNMENT.shards/3-of-64/train.rows    tags and numbers of the aligned training rows, in order

Shards are numbered from 0. The merged alignment is that of one `celu align` of all rows, byte for
byte. Reading, writing and merging hold the rows of one shard in memory, not more.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from celu.config.reading import Settings, read_json
from celu.config.schema import TAG, CountByPart, Part
from celu.data.alignment import Alignment, AlignmentFacts, Count, publish_alignment, read_alignment
from celu.data.folder import NewFolder
from celu.data.store import Store, tags_of
from celu.data.tags import TAG_BYTES, Commitment, Tags
from celu.errors import AlignmentError, ConfigError, DataError

MAX_SHARDS = 1 << 16
_FACTS_FILE = "shard.json"
_FOLDER = re.compile(r"(\d+)-of-(\d+)")
_ROW = np.dtype([("tag", f"V{TAG_BYTES}"), ("number", "<i8")])
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """One of `count` ranges of tags, numbered from 0."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not (1 <= self.count <= MAX_SHARDS and 0 <= self.index < self.count):
            raise ConfigError(
                f"--shard: expected I/K with K from 1 to {MAX_SHARDS} and I from 0 to K - 1, "
                f"got {self}"
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard of a text such as "3/64"; raises ConfigError."""
        numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        if numbers is None:
            raise ConfigError(f"--shard: expected I/K, such as 3/64, got {text!r}")
        return cls(int(numbers[1]), int(numbers[2]))

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.index}-of-{self.count}"

    @property
    def tag_range(self) -> tuple[bytes, bytes]:
        """No tag of the shard is before the first, or from the second on; see `shard_of`."""
        start, stop = (-(-(i << 48) // self.count) for i in (self.index, self.index + 1))
        last = b"\xff" * TAG_BYTES + b"\0"  # after every tag
        return start.to_bytes(6, "big"), last if stop >> 48 else stop.to_bytes(6, "big")

    def padded_rows(self, total: int) -> int:
        """How many rows it has with its dummies, if the party has `total` rows: no secret."""
        mean = -(-total // self.count)
        return mean + 6 * (isqrt(mean - 1) + 1)  # six standard deviations, rounded up

    def check_fits(self, num_rows: int, total: int) -> None:
        """Raise DataError if it has more rows than `padded_rows`: its size would tell something."""
        if num_rows > self.padded_rows(total):
            raise DataError(
                f"shard {self}: expected at most {self.padded_rows(total)} of {total} rows, got "
                "more. Hashed ids spread evenly, so this is very rare with 36 rows or more a "
                "shard; choose another number of shards at all parties"
            )


def shard_of(tags: Tags, count: int) -> npt.NDArray[np.uint64]:
    """The shard of each tag: its range of the first 48 bits."""
    first = np.ascontiguousarray(tags[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    return ((first >> np.uint64(16)) * np.uint64(count)) >> np.uint64(48)


@dataclass(frozen=True)
class ShardRows:
    """The rows of a store in one shard, by part in the store's order, and digests of their tags."""

    tags: dict[Part, Tags]
    numbers: dict[Part, Rows]

    def digests(self) -> dict[Part, str]:
        """What `merge_shards` compares with the store."""
        return {part: _new_digest(tags.tobytes()).hexdigest() for part, tags in self.tags.items()}


class ShardFacts(Settings):
    """The content of `shard.json`."""

    format: Literal["celu-alignment-shard-1"] = "celu-alignment-shard-1"
    index: Count
    count: Annotated[int, Field(ge=1, le=MAX_SHARDS)]
    terms: str  # a digest of what the parties agreed on
    store_rows: CountByPart  # of the whole store
    store_tags: dict[Part, str]  # digests of the tags of this shard in the store
    peers: dict[str, Count]  # the number of rows that each peer has in all
    common: dict[str, Count]
    answered: dict[str, Count]  # dummies included
    rows: CountByPart
    digests: dict[Part, str]


def read_rows(store: Store, shard: Shard) -> ShardRows:
    """The tags and row numbers of a shard; of the store's tags, only its range is read."""
    start, stop = shard.tag_range
    tags: dict[Part, Tags] = {}
    numbers: dict[Part, Rows] = {}
    for part in store.parts:
        found = [(np.zeros((0, TAG_BYTES), np.uint8), np.zeros(0, np.int64))]
        for first, its_tags in store.tags_between(part, start, stop):
            inside = np.flatnonzero(shard_of(its_tags, shard.count) == shard.index)
            found.append((its_tags[inside], inside + first))
        tags[part] = np.concatenate([pair[0] for pair in found])
        numbers[part] = np.concatenate([pair[1] for pair in found])
    return ShardRows(tags, numbers)


def write_shard(
    folder: Path,
    shard: Shard,
    store: Store,
    own: ShardRows,
    aligned: Mapping[Part, Rows],
    *,
    terms: Mapping[str, Any],
    peers: dict[str, int],
    common: dict[str, int],
    answered: dict[str, int],
) -> ShardFacts:
    """Write an aligned shard; `aligned` are the numbers of rows within those of `own`."""
    files: dict[Part, bytes] = {}
    for part, selected in aligned.items():
        rows = np.empty(len(selected), _ROW)
        tags = np.ascontiguousarray(own.tags[part][selected])
        rows["tag"] = tags.view(f"V{TAG_BYTES}").reshape(-1)
        rows["number"] = own.numbers[part][selected]
        files[part] = rows.tobytes()
    agreed = json.dumps(terms, sort_keys=True).encode()
    facts = ShardFacts(
        index=shard.index,
        count=shard.count,
        terms=_new_digest(agreed).hexdigest(),
        store_rows=dict(store.schema.rows),
        store_tags=own.digests(),
        peers=peers,
        common=common,
        answered=answered,
        rows={part: len(selected) for part, selected in aligned.items()},
        digests={part: _new_digest(data).hexdigest() for part, data in files.items()},
    )
    with NewFolder(folder / shard.folder, _FACTS_FILE, replace=True, private=True) as new:
        for part, data in files.items():
            (new.path / f"{part}.rows").write_bytes(data)
        text = facts.model_dump_json(indent=2) + "\n"
        (new.path / _FACTS_FILE).write_text(text, encoding="utf-8")
        new.publish()
    return facts


def read_shard(folder: Path, shard: Shard) -> ShardFacts:
    """The facts of an aligned shard; raises DataError if they are missing or damaged."""
    file = folder / shard.folder / _FACTS_FILE
    align = f"align shard {shard} again at all parties"
    facts = read_json(ShardFacts, file, "an aligned shard", align, DataError)
    parts: list[Mapping[Part, Any]]
    parts = [facts.store_rows, facts.store_tags, facts.rows, facts.digests]
    if (facts.index, facts.count) != (shard.index, shard.count) or any(
        values.keys() != facts.rows.keys() for values in parts
    ):
        raise DataError(f"{file}: {_again(shard)}, got another one")
    return facts


def read_shard_rows(folder: Path, shard: Shard, facts: ShardFacts, part: Part) -> tuple[Tags, Rows]:
    """The tags and numbers of the aligned rows of a part; raises DataError if they are damaged."""
    file = folder / shard.folder / f"{part}.rows"
    try:
        if file.stat().st_size != facts.rows[part] * _ROW.itemsize:
            raise DataError(f"{file}: {_again(shard)}, got another number of rows")
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: {_again(shard)}, got: {error.strerror}") from error
    if _new_digest(data).hexdigest() != facts.digests[part]:
        raise DataError(f"{file}: {_again(shard)}, got a damaged file")
    rows = np.frombuffer(data, _ROW)
    tags = np.frombuffer(rows["tag"].tobytes(), np.uint8).reshape(-1, TAG_BYTES)
    numbers = rows["number"].astype(np.int64)
    in_store = bool((numbers >= 0).all() and (numbers < facts.store_rows[part]).all())
    if not in_store or not (shard_of(tags, shard.count) == shard.index).all():
        raise DataError(f"{file}: {_again(shard)}, got rows of others")
    return tags, numbers


def merge_shards(path: Path, folder: Path, store: Store) -> tuple[Alignment, dict[str, int]]:
    """Write the alignment `path` from all shards in `folder`; also return each peer's dummies.

    Raises DataError that names shards that are missing, damaged or of another number of shards, and
    AlignmentError for shards of another store, other terms or another number of a peer's rows.
    """
    shards = _find_shards(folder)
    facts = [read_shard(folder, shard) for shard in shards]
    _check_same(facts, store)
    first = facts[0]
    count = first.count
    padding = {peer: count * shards[0].padded_rows(n) - n for peer, n in first.peers.items()}
    rows = {part: sum(f.rows[part] for f in facts) for part in store.parts}
    if not sum(rows.values()):
        raise DataError(
            "no row is at all parties. Check that all parties use the same id column, and the "
            "same format for ids (case, spaces, leading zeros)"
        )
    commitments = {part: Commitment() for part in store.parts}

    def numbers(part: Part) -> Iterator[Rows]:
        for shard, its_facts in zip(shards, facts, strict=True):
            its_tags, its_numbers = read_shard_rows(folder, shard, its_facts, part)
            commitments[part].add(its_tags)
            yield its_numbers

    def made() -> AlignmentFacts:
        return AlignmentFacts(
            peers=first.peers,
            common={peer: sum(f.common[peer] for f in facts) for peer in first.peers},
            answered={
                peer: sum(f.answered[peer] for f in facts) - padding[peer] for peer in first.peers
            },
            store_rows=dict(store.schema.rows),
            rows=rows,
            commitments={part: one.hexdigest() for part, one in commitments.items()},
        )

    publish_alignment(path, rows, numbers, made)
    return read_alignment(path, store), padding


def _find_shards(folder: Path) -> list[Shard]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = [(int(m[1]), int(m[2])) for m in map(_FOLDER.fullmatch, names) if m]
    counts = sorted({count for _, count in found})
    if not counts:
        raise DataError(f"{folder}: expected aligned shards, got none; run celu align --shard I/K")
    if len(counts) > 1:
        numbers = " and of ".join(map(str, counts))
        raise DataError(
            f"{folder}: expected shards of one number, got some of {numbers}; remove those that "
            "you do not want"
        )
    shards = [Shard(index, counts[0]) for index in range(counts[0])]
    missing = sorted({s.index for s in shards} - {index for index, _ in found})
    if missing:
        some = ", ".join(map(str, missing[:20])) + (" and more" if len(missing) > 20 else "")
        raise DataError(
            f"{folder}: expected all {counts[0]} shards, got none for {some}; run celu align "
            "--shard for these at all parties"
        )
    return shards


def _check_same(facts: list[ShardFacts], store: Store) -> None:
    first = facts[0]
    for one in facts:
        shard = Shard(one.index, one.count)
        if one.store_rows != store.schema.rows:
            raise AlignmentError(f"shard {shard} was aligned for another store; {_again(shard)}")
        for name in ("terms", "peers"):
            if getattr(one, name) != getattr(first, name):
                what = "other terms" if name == "terms" else "another number of a peer's rows"
                raise AlignmentError(
                    f"shard {shard} was aligned with {what} than shard 0/{one.count}; "
                    "run the outdated one again at all parties"
                )
        if one.common.keys() != one.peers.keys() or one.answered.keys() != one.peers.keys():
            raise DataError(f"{_FACTS_FILE}: {_again(shard)}, got other peers")
    for part in store.parts:
        made: list[Any] = [_new_digest() for _ in facts]
        for batch in store.batches(part, [TAG]):
            tags = tags_of(batch)
            indexes = shard_of(tags, len(facts))
            for index in np.unique(indexes):
                made[int(index)].update(tags[indexes == index].tobytes())
        for one, digest in zip(facts, made, strict=True):
            if one.store_tags[part] != digest.hexdigest():
                shard = Shard(one.index, one.count)
                raise AlignmentError(
                    f"shard {shard} was aligned for another store; {_again(shard)}"
                )


def _again(shard: Shard) -> str:
    return f"expected shard {shard}; run it again at all parties"


def _new_digest(data: bytes = b"") -> Any:
    return hashlib.blake2b(data, digest_size=16, person=b"celu.shard")
