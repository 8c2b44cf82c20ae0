"""A peer that restarts cannot have more ids answered than it declares, unnoticed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from celu.errors import PeerLost, ProtocolError
from celu.events import ignore
from celu.psi.answered import Answered
from celu.psi.protocol import AlignmentResources, AlignmentResult, align_guest
from celu.psi.workers import Workers
from celu.transport.link import Link
from celu.transport.memory import memory_links
from psi.parties import TERMS, Killed, Outcomes, Party, align, run_to_completion, tags_of
from psi.prober import probe

CHUNK = 8
OURS = range(CHUNK)


class Prober:
    """A host that takes our answers and dies; on each start it may claim to have none of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: list[bytes] = []
        self.sessions: list[str | None] = []

    def attempt(self, ids: Iterable[int], *, resume: bool = True) -> Outcomes:
        """Run our alignment against one start of this host."""
        to_host, to_guest = memory_links("guest", "host")
        resources = AlignmentResources(self.folder, Workers(), CHUNK)
        victim = align_guest("guest", {"host": to_host}, tags_of(OURS), TERMS, resources, ignore)
        links: dict[str, list[Link]] = {"guest": [to_host], "host": [to_guest]}
        attack = self._attack(to_guest, ids, resume)
        return run_to_completion({"guest": victim, "host": attack}, links)

    async def _attack(self, link: Link, ids: Iterable[int], resume: bool) -> None:
        offered, answer = await probe(link, ids, CHUNK, resume=resume)
        self.sessions.append(offered)
        self.answers += [answer] if answer else []
        raise Killed

    def secrets(self) -> list[Path]:
        return list(self.folder.rglob("state"))


def test_a_restarted_peer_that_sends_other_ids_gets_no_answer_and_the_key_is_discarded(
    tmp_path: Path,
) -> None:
    prober = Prober(tmp_path)
    assert isinstance(prober.attempt(range(8))["guest"], PeerLost)
    assert len(prober.answers) == 1
    refused = prober.attempt(range(100, 108))["guest"]
    assert isinstance(refused, ProtocolError), repr(refused)
    assert "BLINDED of round 0: expected the elements that were answered before" in str(refused)
    assert len(prober.answers) == 1
    assert not prober.secrets()
    prober.attempt(range(100, 108))
    assert prober.sessions[1] is not None
    assert prober.sessions[2] is None  # so the next start used a fresh key


def test_a_restarted_peer_that_sends_the_same_ids_gets_the_same_answer(tmp_path: Path) -> None:
    prober = Prober(tmp_path)
    for _ in range(3):
        assert isinstance(prober.attempt(range(8))["guest"], PeerLost)
    assert len(prober.answers) == 3
    assert len(set(prober.answers)) == 1


def test_answers_under_fresh_keys_are_bounded_by_the_rows_that_the_peer_declares(
    tmp_path: Path,
) -> None:
    prober = Prober(tmp_path)
    outcomes = [prober.attempt(range(8 * i, 8 * i + 8), resume=False)["guest"] for i in range(8)]
    assert len(prober.answers) == 4
    assert all(isinstance(outcome, PeerLost) for outcome in outcomes[:4])
    for refused in outcomes[4:]:
        assert isinstance(refused, ProtocolError), repr(refused)
        assert "32 of its ids were answered" in str(refused)


def test_the_largest_attempt_counts_and_not_the_largest_claim() -> None:
    answered = Answered().plus(100).plus(8)
    answered.check_allows(8)  # a peer may come back with fewer rows
    answered.check_allows(1000)
    for _ in range(4):
        answered = answered.plus(80)  # though it may have claimed 1000
    with pytest.raises(ProtocolError, match="428 of its ids were answered"):
        answered.check_allows(8)


def test_the_result_counts_the_ids_that_were_answered_under_all_keys(tmp_path: Path) -> None:
    prober = Prober(tmp_path / "guest")
    prober.attempt(range(8), resume=False)
    prober.attempt(range(50, 57), resume=False)
    prober.attempt(range(60, 67))  # refused
    outcome = align(tmp_path, Party(OURS), host=Party(range(5, 10)))["guest"]
    assert isinstance(outcome, AlignmentResult), repr(outcome)
    assert outcome.peer_rows == {"host": 5}
    assert outcome.answered == {"host": 8 + 7 + 5}
    assert not list((tmp_path).iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"count": -1, "largest": 2}', "{" * 9])
def test_a_damaged_count_is_refused_with_the_next_step(tmp_path: Path, text: str) -> None:
    prober = Prober(tmp_path)
    prober.attempt(range(8))
    prober.attempt(range(8), resume=False)
    (count,) = tmp_path.rglob("answered")
    count.write_text(text)
    refused = prober.attempt(range(8))["guest"]
    assert "remove it to count from zero" in str(refused)
    assert len(prober.answers) == 2
