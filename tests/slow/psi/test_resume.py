"""A killed alignment resumes; one whose rows or terms changed starts over."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from celu.errors import CeluError, PeerFailed, PeerLost
from celu.events import AlignmentProgress
from celu.psi.exchange import AHEAD, LAG
from celu.psi.state import ExchangeState
from celu.psi.workers import Workers
from psi.parties import Killed, Outcomes, Party, Wrapped, align, assert_aligned, killed_at

GUEST, HOST = range(120), range(50, 210)
CHUNK = 4
FULL = 2 * (len(GUEST) + len(HOST))  # multiplications of both parties
IN_FLIGHT = 2 * 2 * 2 * (LAG + 2 * AHEAD + 1) * CHUNK  # multiplications that a crash may cost


def party(ids: Iterable[int], **fields: Any) -> Party:
    return Party(ids, chunk_rows=CHUNK, **fields)


def run(folder: Path, **changes: Party) -> tuple[Outcomes, int]:
    """The outcomes, and the number of multiplications."""
    parties = {"guest": party(GUEST), "host": party(HOST), **changes}
    outcomes = align(folder, **parties)
    return outcomes, sum(each.workers.multiplications for each in parties.values())


def interrupt(folder: Path, culprit: str = "host", message: int = 60) -> int:
    """Kill one party at a message; returns the multiplications done."""
    ids = GUEST if culprit == "guest" else HOST
    victim = party(ids, wrap=lambda link: Wrapped(link, killed_at(message)))
    outcomes, done = run(folder, **{culprit: victim})
    assert isinstance(outcomes[culprit], Killed)
    (other,) = outcomes.keys() - {culprit}
    assert isinstance(outcomes[other], PeerLost)
    return done


def assert_done(folder: Path, outcomes: Outcomes) -> None:
    assert_aligned(outcomes, {"guest": party(GUEST), "host": party(HOST)})
    assert not list(folder.iterdir())


@pytest.mark.parametrize("culprit", ["guest", "host"])
@pytest.mark.parametrize("message", [1, 2, 3, 30, 45, 60, 72])
def test_a_killed_alignment_resumes(tmp_path: Path, culprit: str, message: int) -> None:
    done = interrupt(tmp_path, culprit, message)
    outcomes, redone = run(tmp_path)
    assert_done(tmp_path, outcomes)
    assert done + redone <= FULL + IN_FLIGHT
    if message >= 45:
        assert redone < FULL


def test_it_resumes_after_several_kills(tmp_path: Path) -> None:
    for culprit in ("host", "guest", "host"):
        interrupt(tmp_path, culprit, 34)
    outcomes, redone = run(tmp_path)
    assert_done(tmp_path, outcomes)
    assert redone < FULL / 2


def test_the_exchange_with_every_host_resumes(tmp_path: Path) -> None:
    def parties() -> dict[str, Party]:
        sets = {"guest": GUEST, "bank": HOST, "shop": range(70), "post": range(45, 300)}
        return {name: party(ids) for name, ids in sets.items()}

    full = parties()
    assert_aligned(align(tmp_path / "whole", **full), full)
    killed = parties()
    killed["post"].wrap = lambda link: Wrapped(link, killed_at(60))
    outcomes = align(tmp_path, **killed)
    assert isinstance(outcomes["post"], Killed)
    assert isinstance(outcomes["shop"], PeerFailed)
    resumed = parties()
    assert_aligned(align(tmp_path, **resumed), resumed)
    for name in resumed:
        assert resumed[name].workers.multiplications < full[name].workers.multiplications


def test_killed_at_the_goodbye_it_resumes_without_any_multiplication(tmp_path: Path) -> None:
    last = 2 + -(-len(HOST) // CHUNK) + -(-len(GUEST) // CHUNK) + 2  # hello, ready, ..., goodbye
    interrupt(tmp_path, "host", last)
    outcomes, redone = run(tmp_path)
    assert_done(tmp_path, outcomes)
    assert redone == 0


def test_only_the_owner_can_read_the_progress(tmp_path: Path) -> None:
    interrupt(tmp_path)
    for own, peer in (("guest", "host"), ("host", "guest")):
        folder = tmp_path / own / peer
        assert {path.name for path in folder.iterdir()} == {"state", "own", "peers"}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more" * 50)


@pytest.mark.parametrize("damage", [torn, flipped, longer, Path.unlink])
@pytest.mark.parametrize("name", ["own", "peers"])
def test_damaged_elements_are_recomputed(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    interrupt(tmp_path)
    damage(tmp_path / "guest" / "host" / name)
    outcomes, redone = run(tmp_path)
    assert_done(tmp_path, outcomes)
    assert redone < FULL


@pytest.mark.parametrize("damage", [torn, flipped, longer, Path.unlink])
@pytest.mark.parametrize("loser", ["guest", "host"])
def test_without_its_secrets_it_starts_over(
    tmp_path: Path, loser: str, damage: Callable[[Path], None]
) -> None:
    interrupt(tmp_path)
    (folder,) = (tmp_path / loser).iterdir()
    damage(folder / "state")
    outcomes, redone = run(tmp_path)
    assert_done(tmp_path, outcomes)
    assert redone == FULL


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', '{"check": 1}', "{" * 9, '{"a": 1}'])
def test_a_malformed_state_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").write_text(text)
    assert ExchangeState(tmp_path, "rows", 5, CHUNK).saved is None


def test_elements_of_another_session_are_ignored(tmp_path: Path) -> None:
    interrupt(tmp_path)
    values = (tmp_path / "guest" / "host" / "own").read_bytes()
    state = ExchangeState(tmp_path / "other", "rows", len(GUEST), CHUNK)
    state.start("ab" * 32, bytes(32), len(HOST))
    (tmp_path / "other" / "own").write_bytes(values)
    assert ExchangeState(tmp_path / "other", "rows", len(GUEST), CHUNK).own.num_stored == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"guest": party(range(119))},
        {"host": party([*range(50, 209), 7])},
        {"guest": party(GUEST, terms={"seed": 9}), "host": party(HOST, terms={"seed": 9})},
        {"guest": Party(GUEST, chunk_rows=5), "host": Party(HOST, chunk_rows=5)},
    ],
    ids=["guest's rows", "host's rows", "terms", "chunks"],
)
def test_after_a_change_both_start_over_with_fresh_keys(
    tmp_path: Path, changed: dict[str, Party]
) -> None:
    interrupt(tmp_path)
    before = secrets_of(tmp_path)
    for each in changed.values():
        each.wrap = lambda link: Wrapped(link, killed_at(10))
    run(tmp_path, **changed)
    assert not before & secrets_of(tmp_path)
    for each in changed.values():
        each.wrap = lambda link: link
        each.workers = Workers()
    outcomes, redone = run(tmp_path, **changed)
    assert_aligned(outcomes, {"guest": party(GUEST), "host": party(HOST), **changed})
    assert redone >= FULL - 2


def secrets_of(folder: Path) -> set[str]:
    saved = [path.read_text() for path in folder.rglob("state")]
    assert len(saved) == 2
    return {text.split('"key": "')[1][:64] for text in saved}


def test_resuming_uses_the_same_session(tmp_path: Path) -> None:
    interrupt(tmp_path)
    before = secrets_of(tmp_path)
    interrupt(tmp_path, "guest", 10)
    assert secrets_of(tmp_path) == before


def test_an_interrupt_is_reported_and_the_progress_stays_on_disk(tmp_path: Path) -> None:
    def stop(event: AlignmentProgress) -> None:
        if event.done > 100:
            raise KeyboardInterrupt

    host = party(HOST)
    host.emit = stop  # type: ignore[method-assign]
    outcomes, _ = run(tmp_path, host=host)
    assert isinstance(outcomes["guest"], PeerFailed)
    assert "interrupted by its operator" in str(outcomes["guest"])
    outcomes, redone = run(tmp_path)
    assert_done(tmp_path, outcomes)
    assert redone < FULL


def test_a_full_disk_is_reported_and_the_progress_stays_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(tmp_path)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("celu.psi.state._append", full)
        outcomes, _ = run(tmp_path)
        assert any("No space left" in str(outcome) for outcome in outcomes.values())
        assert all(isinstance(outcome, CeluError) for outcome in outcomes.values())
    outcomes, redone = run(tmp_path)
    assert_done(tmp_path, outcomes)
    assert redone < FULL
