"""Shards of an alignment: padded to a public size, pinned in the handshake, merged to the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from celu.data import store
from celu.data.shards import Shard, read_rows, shard_of
from celu.data.tags import ascending, make_tags
from celu.errors import ContractMismatch, DataError, PeerFailed, ProtocolError
from celu.events import ignore
from celu.psi.exchange import dummies
from celu.psi.protocol import (
    AlignmentResources,
    AlignmentResult,
    _read_total,
    align_guest,
    align_host,
)
from celu.psi.workers import Workers
from celu.transport.link import Link
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message
from psi.parties import TERMS, Killed, Outcomes, Wrapped, killed_at, run_to_completion, tags_of
from stores import write_store

GUEST, HOST = range(200), range(50, 330)


def align_shards(
    folder: Path,
    shards: dict[str, Shard],
    wrap: Any = lambda link: link,
    sets: dict[str, Any] | None = None,
) -> Outcomes:
    """Align one shard of each of two parties."""
    to_host, to_guest = memory_links("guest", "host")
    sets = sets or {"guest": GUEST, "host": HOST}
    tags, work = {}, {}
    for name, ids in sets.items():
        all_tags, shard = tags_of(ids), shards[name]
        tags[name] = all_tags[shard_of(all_tags, shard.count) == shard.index]
        work[name] = AlignmentResources(
            folder / name, Workers(), 8, shard=shard, total=len(all_tags)
        )
    links: dict[str, list[Link]] = {"guest": [to_host], "host": [wrap(to_guest)]}
    guest_links = {"host": to_host}
    programs = {
        "guest": align_guest("guest", guest_links, tags["guest"], TERMS, work["guest"], ignore),
        "host": align_host("host", links["host"][0], tags["host"], TERMS, work["host"], ignore),
    }
    return run_to_completion(programs, links)


def test_shards_find_the_rows_of_the_whole_and_know_the_whole_size(tmp_path: Path) -> None:
    tags, found = tags_of(GUEST), []
    for index in range(4):
        shard = Shard(index, 4)
        own = tags[shard_of(tags, 4) == index]
        outcome = align_shards(tmp_path, {"guest": shard, "host": shard})["guest"]
        assert isinstance(outcome, AlignmentResult), outcome
        assert outcome.peer_rows == {"host": len(HOST)}
        assert outcome.answered == {"host": shard.padded_rows(len(HOST))}
        found.append(own[outcome.rows])
    expected = tags_of(set(GUEST) & set(HOST))
    assert np.concatenate(found).tobytes() == expected.tobytes()


def test_every_shard_sends_the_same_number_of_elements(tmp_path: Path) -> None:
    counts = []
    for index in range(3):
        sent = 0

        def count(message: Message) -> Message:
            nonlocal sent
            if message.kind is Kind.BLINDED and message.tensor is not None:
                sent += len(message.tensor)
            return message

        shard = Shard(index, 3)
        align_shards(
            tmp_path, {"guest": shard, "host": shard}, lambda link, c=count: Wrapped(link, c)
        )
        counts.append(sent)
    assert counts == [Shard(0, 3).padded_rows(len(HOST))] * 3


def test_a_shard_that_is_killed_resumes_and_the_others_are_left_alone(tmp_path: Path) -> None:
    first, second = Shard(0, 3), Shard(1, 3)
    align_shards(tmp_path / "1", {"guest": second, "host": second})
    outcomes = align_shards(
        tmp_path / "0",
        {"guest": first, "host": first},
        lambda link: Wrapped(link, killed_at(30)),
    )
    assert isinstance(outcomes["host"], Killed)
    sent = 0

    def count(message: Message) -> Message:
        nonlocal sent
        if message.kind is Kind.BLINDED and message.tensor is not None:
            sent += len(message.tensor)
        return message

    again = align_shards(
        tmp_path / "0", {"guest": first, "host": first}, lambda link: Wrapped(link, count)
    )["guest"]
    assert isinstance(again, AlignmentResult), again
    tags = tags_of(GUEST)
    own = tags[shard_of(tags, 3) == 0]
    common = tags_of(set(GUEST) & set(HOST))
    assert own[again.rows].tobytes() == common[shard_of(common, 3) == 0].tobytes()
    assert 0 < sent < first.padded_rows(len(HOST)), "what was answered is not sent again"


def test_a_shard_without_common_rows_is_no_error(tmp_path: Path) -> None:
    shard = Shard(0, 2)
    sets = {"guest": range(40), "host": range(50, 90)}
    for outcome in align_shards(tmp_path, {"guest": shard, "host": shard}, sets=sets).values():
        assert isinstance(outcome, AlignmentResult), outcome
        assert len(outcome.rows) == 0


@pytest.mark.parametrize("other", [Shard(1, 4), Shard(0, 5)])
def test_another_shard_or_number_of_shards_is_named_and_refused(
    tmp_path: Path, other: Shard
) -> None:
    for outcome in align_shards(tmp_path, {"guest": Shard(0, 4), "host": other}).values():
        assert isinstance(outcome, (ContractMismatch, PeerFailed))
        assert "psi.shard: " in str(outcome) and str(other) in str(outcome)
        assert "the same --shard I/K" in str(outcome) and "job.toml" not in str(outcome)


@pytest.mark.parametrize("change", [{"total": 10**6}, {"total": 0}, {"total": "7"}, {"rows": 9}])
def test_a_peer_must_declare_the_padded_size(tmp_path: Path, change: dict[str, Any]) -> None:
    def send(message: Message) -> Message:
        if message.kind is Kind.HELLO:
            return replace(message, body={**(message.body or {}), **change})
        return message

    shard = Shard(0, 2)
    outcomes = align_shards(
        tmp_path, {"guest": shard, "host": shard}, lambda link: Wrapped(link, send)
    )
    assert isinstance(outcomes["guest"], ProtocolError)
    assert "from host: HELLO: expected" in str(outcomes["guest"])


def test_a_shard_beyond_its_padding_is_refused_before_anything_is_sent() -> None:
    shard = Shard(0, 10)
    assert shard.padded_rows(1000) == 100 + 6 * 10
    shard.check_fits(160, 1000)
    with pytest.raises(DataError, match=r"shard 0/10: expected at most 160 of 1000 rows, got more"):
        shard.check_fits(161, 1000)


def test_a_store_may_have_more_rows_than_a_shard() -> None:
    shard, total = Shard(3, 64), 1 << 33
    declared = {"rows": shard.padded_rows(total), "total": total}
    assert _read_total(declared, shard, "host") == total
    for wrong, its_shard in (({"rows": total}, None), ({**declared, "total": 1 << 35}, shard)):
        with pytest.raises(ProtocolError, match="from host: HELLO: expected"):
            _read_total(wrong, its_shard, "host")


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stores get row groups of ten rows; collects those that are read, but for single tags."""
    monkeypatch.setattr(store, "READ_ROWS", 10)
    found: list[int] = []
    real = pq.ParquetFile.iter_batches

    def iter_batches(file: Any, rows: int, row_groups: list[int], **more: Any) -> Any:
        found.extend(row_groups if rows > 1 else [])
        return real(file, rows, row_groups=row_groups, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    return found


@pytest.mark.parametrize("has_statistics", [True, False])
@pytest.mark.parametrize("rows", [1000, 4000])
def test_a_shard_reads_the_row_groups_of_its_range_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups_read: list[int],
    has_statistics: bool,
    rows: int,
) -> None:
    make = partial(pq.ParquetWriter, write_statistics=has_statistics)
    monkeypatch.setattr(pq, "ParquetWriter", make)
    ids = [f"id {i}" for i in range(rows)]
    tags = make_tags(ids, 1)
    ids = [ids[i] for i in ascending(tags)]
    parts = {"train": ids, "test": ids[:3]}
    columns = {"x": np.zeros(rows, np.float32)}
    made = write_store(tmp_path / "store", columns, test={"x": columns["x"][:3]}, ids=parts)
    all_tags = made.tags("train")
    every = shard_of(all_tags, 40)
    for index in (0, 1, 17, 39):
        groups_read.clear()
        own = read_rows(made, Shard(index, 40))
        assert len(groups_read) <= (every == index).sum() / 10 + 4  # of rows / 10 in all
        assert own.numbers["train"].tolist() == np.flatnonzero(every == index).tolist()
        assert np.array_equal(own.tags["train"], all_tags[every == index])


def test_rows_in_any_order_are_found(tmp_path: Path, groups_read: list[int]) -> None:
    made = write_store(tmp_path / "store", {"x": np.zeros(500, np.float32)})
    every = shard_of(made.tags("train"), 7)
    for index in range(7):
        own = read_rows(made, Shard(index, 7))
        assert own.numbers["train"].tolist() == np.flatnonzero(every == index).tolist()


def test_no_tag_of_a_shard_is_outside_of_its_range() -> None:
    tags = [tag.tobytes() for tag in tags_of(range(3000))]
    for count in (1, 3, 64, 1 << 16):
        for tag, index in zip(tags, shard_of(tags_of(range(3000)), count), strict=True):
            start, stop = Shard(int(index), count).tag_range
            assert start <= tag < stop
    assert Shard(1, 2).tag_range[0] == bytes([128, 0, 0, 0, 0, 0])
    last = b"\xff" * 16
    assert Shard(2, 3).tag_range[1] > last


def test_shards_are_ranges_of_tags_of_about_equal_size() -> None:
    tags = tags_of(range(5000))
    indexes = shard_of(tags, 7)
    assert (np.diff(indexes.astype(int)) >= 0).all()
    assert all(0 < n <= Shard(0, 7).padded_rows(5000) for n in np.bincount(indexes.astype(int)))
    assert shard_of(np.full((1, 16), 255, np.uint8), 1 << 16).tolist() == [(1 << 16) - 1]


def test_dummies_belong_to_their_seed() -> None:
    one = dummies(50, b"one")
    assert one.tobytes() == dummies(50, b"one").tobytes()
    assert len({row.tobytes() for row in np.concatenate([one, dummies(50, b"other")])}) == 100
