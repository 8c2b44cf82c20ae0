"""An alignment selects the rows that all parties have, and nothing else."""

from __future__ import annotations

import random
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celu.certs import make_authority, make_party
from celu.errors import ContractMismatch, DataError, PeerFailed
from celu.events import ignore
from celu.psi.exchange import AHEAD, LAG, shuffled
from celu.psi.protocol import AlignmentResources, AlignmentResult, align_guest, align_host
from celu.psi.workers import Workers
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.link import run_blocking
from celu.transport.memory import CAPACITY, memory_links
from celu.transport.message import Kind, Message
from psi.parties import TERMS, Party, Wrapped, align, assert_aligned, tags_of


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=4).filter(lambda s: len(s) != 3),
    shared=st.integers(1, 10),
    chunk_rows=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_the_result_is_the_intersection_of_all_sets(
    sizes: list[int], shared: int, chunk_rows: int, seed: int
) -> None:
    draw = random.Random(seed)
    sets = [{*range(shared), *draw.sample(range(100), size)} for size in sizes]
    names = ["guest", *(f"host{i}" for i in range(1, len(sets)))]
    parties = {
        name: Party(ids, chunk_rows=chunk_rows) for name, ids in zip(names, sets, strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        assert_aligned(align(Path(folder), **parties), parties)
        assert not list(Path(folder).iterdir())


@pytest.mark.parametrize(("guest", "host"), [(500, 3), (3, 500)])
def test_sets_may_differ_in_size(tmp_path: Path, guest: int, host: int) -> None:
    parties = {"guest": Party(range(guest)), "host": Party(range(2, host + 2))}
    outcomes = align(tmp_path, **parties)
    assert_aligned(outcomes, parties)
    aligned = outcomes["guest"]
    assert isinstance(aligned, AlignmentResult)
    assert aligned.peer_rows == {"host": host}
    assert aligned.common == {"host": len(aligned.rows)}


def test_with_several_hosts_the_rows_of_all_are_selected_and_each_learns_only_its_own_pair(
    tmp_path: Path,
) -> None:
    parties = {
        "guest": Party(range(40)),
        "bank": Party(range(10, 50)),
        "shop": Party(range(200, 400, 1)),
        "post": Party([*range(25), 99]),
    }
    parties["shop"].ids = [*range(15, 30), *range(200, 600)]  # by far the largest
    outcomes = align(tmp_path, **parties)
    assert_aligned(outcomes, parties)
    bank = outcomes["bank"]
    assert isinstance(bank, AlignmentResult)
    assert bank.common == {"guest": 30}
    assert bank.peer_rows == {"guest": 40}


def test_a_large_selection_is_sent_in_several_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celu.psi.selection._PART_BYTES", 2)
    parties = {
        "guest": Party(range(60)),
        "bank": Party(range(3, 60)),
        "shop": Party([i for i in range(60) if i % 3]),
    }
    assert_aligned(align(tmp_path, **parties), parties)


def test_progress_counts_elements(tmp_path: Path) -> None:
    parties = {"guest": Party(range(30)), "host": Party(range(20))}
    align(tmp_path, **parties)
    for party in parties.values():
        assert {event for event, _ in party.events} == {"aligning"}
        assert {fields["total"] for _, fields in party.events} == {50}
        done = [fields["done"] for _, fields in party.events]
        assert done == sorted(done)
        assert done[-1] == 50


def test_the_queue_of_unread_messages_never_fills_a_link(tmp_path: Path) -> None:
    longest = 0

    def measure_queue(link):  # type: ignore[no-untyped-def]
        def send(message: Message) -> Message:
            nonlocal longest
            longest = max(longest, len(link._outgoing.queue))
            return message

        return Wrapped(link, send)

    parties = {name: Party(range(400), wrap=measure_queue) for name in ("guest", "host")}
    assert_aligned(align(tmp_path, **parties), parties)
    assert 0 < longest <= 4 * AHEAD + 2 < CAPACITY
    assert LAG > AHEAD


def test_elements_and_their_order_are_fresh_in_each_session(tmp_path: Path) -> None:
    sent: list[bytes] = []

    def send(message: Message) -> Message:
        if message.kind is Kind.BLINDED and message.tensor is not None:
            sent.append(message.tensor.numpy().tobytes())
        return message

    for _ in range(2):
        align(tmp_path, Party(range(8), wrap=lambda link: Wrapped(link, send)), host=Party([1]))
    elements = [{data[i : i + 32] for i in range(0, len(data), 32)} for data in sent]
    assert [len(e) for e in elements] == [8, 8]
    assert not elements[0] & elements[1]  # another session, another key
    one, other = shuffled(1000, b"one"), shuffled(1000, b"other")
    assert (np.sort(one) == np.arange(1000)).all()
    assert (one == other).sum() < 20


@pytest.mark.parametrize("change", [{"split.seed": 4}, {"split.test": 0.5}, {"extra": True}])
def test_differing_terms_are_named_and_refused(tmp_path: Path, change: dict[str, object]) -> None:
    outcomes = align(tmp_path, Party(range(9)), host=Party(range(9), terms={**TERMS, **change}))
    (field,) = change
    for outcome in outcomes.values():
        assert isinstance(outcome, (ContractMismatch, PeerFailed))
        assert f"{field}: " in str(outcome)
        file = "[split] in schema.toml" if field.startswith("split.") else "same job.toml"
        assert file in str(outcome)


def test_differing_chunk_sizes_are_named_and_refused(tmp_path: Path) -> None:
    outcomes = align(tmp_path, Party(range(9)), host=Party(range(9), chunk_rows=9))
    assert "psi.chunk_rows: " in str(outcomes["guest"])


def test_with_x25519_the_result_is_the_same(tmp_path: Path) -> None:
    sets = {"guest": range(40), "bank": range(10, 50), "shop": [*range(15, 30), *range(90, 150)]}
    parties = {name: Party(ids, workers=Workers(group="x25519")) for name, ids in sets.items()}
    assert_aligned(align(tmp_path, **parties), parties)


def test_differing_groups_are_named_and_refused(tmp_path: Path) -> None:
    host = Party(range(9), workers=Workers(group="x25519"))
    outcomes = align(tmp_path, Party(range(9)), host=host)
    for outcome in outcomes.values():
        assert isinstance(outcome, (ContractMismatch, PeerFailed))
        assert "psi.group: " in str(outcome) and "x25519" in str(outcome)


def test_without_common_rows_the_error_names_the_next_step(tmp_path: Path) -> None:
    outcomes = align(tmp_path, Party(range(20)), host=Party(range(20, 50)))
    for outcome in outcomes.values():
        assert isinstance(outcome, DataError)
        assert "same id column" in str(outcome)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"answered"}


def test_without_rows_common_to_all_every_party_gets_the_error(tmp_path: Path) -> None:
    hosts = {"bank": Party(range(10)), "shop": Party(range(10, 20))}
    for outcome in align(tmp_path, Party(range(20)), **hosts).values():
        assert isinstance(outcome, DataError)
        assert "no row is at all parties" in str(outcome)


@pytest.mark.parametrize("ids", [[], [3, 3], [5, 4, 3, 2, 1, 0]])
def test_tags_must_be_unique_and_ascending(tmp_path: Path, ids: list[int]) -> None:
    tags = tags_of(ids) if len(set(ids)) < 3 else tags_of(ids)[::-1]
    link, _ = memory_links("guest", "host")
    coroutine = align_guest(
        "guest", {"host": link}, tags, TERMS, AlignmentResources(tmp_path, Workers()), ignore
    )
    with pytest.raises(DataError, match=r"rows to align|ascending"):
        run_blocking(coroutine)


def test_over_tls_and_with_workers_the_result_is_the_same(tmp_path: Path) -> None:
    for name in ("guest", "host"):
        make_authority(tmp_path / name, name)
        make_party(tmp_path / name, name)
    ports: list[int] = []
    bound = threading.Event()
    outcomes: dict[str, AlignmentResult] = {}
    ids = {"guest": range(300), "host": range(100, 500)}

    def listening(port: int) -> None:
        ports.append(port)
        bound.set()

    def endpoint(name: str, peer: str) -> Endpoint:
        listens = name == "guest"
        own = tmp_path / name
        return Endpoint(
            name=name,
            listen="127.0.0.1:0" if listens else None,
            accept=(peer,) if listens else (),
            connect={} if listens else {peer: Route(f"127.0.0.1:{ports[0]}")},
            keys=(own / f"{name}.pem", own / f"{name}.key", {peer: tmp_path / peer / "ca.pem"}),
            connect_s=120,
            deadline_s=120,
        )

    def run(name: str, peer: str) -> None:
        with Workers(1) as workers, open_links(endpoint(name, peer), listening) as links:
            resources = AlignmentResources(tmp_path / name / "work", workers, chunk_rows=16)
            rest = tags_of(ids[name]), TERMS, resources, ignore
            if name == "guest":
                outcomes[name] = run_blocking(align_guest(name, links, *rest))
            else:
                outcomes[name] = run_blocking(align_host(name, links[peer], *rest))

    guest = threading.Thread(target=run, args=("guest", "host"))
    guest.start()
    assert bound.wait(120)
    run("host", "guest")
    guest.join(120)
    assert_aligned(dict(outcomes), {name: Party(ids[name]) for name in ids})
