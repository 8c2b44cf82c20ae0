"""From which round the parties go on, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import celu
from celu.checkpoint.agreement import Agreement, Claim, agree
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import Inline
from celu.errors import CheckpointError, PeerFailed, ProtocolError
from celu.events import ignore
from celu.session import guest_session, host_session
from celu.simulation import _run_together
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message
from checkpoint.disks import QuickDisk
from federation import Federation, federation

A, B = "a" * 32, "b" * 32


def test_the_newest_round_that_all_hold_is_gone_on_from() -> None:
    claims = {
        "guest": Claim(A, (0, 10, 20, 30)),
        "one": Claim(A, (0, 10, 20)),
        "two": Claim(A, (0, 20, 30)),
    }
    assert agree("guest", claims) == Agreement(A, 20)
    assert agree("guest", {**claims, "two": Claim(A, (0, 30))}) == Agreement(A, 0)


def test_where_nobody_holds_anything_the_guests_run_is_everybodys() -> None:
    assert agree("guest", {"guest": Claim(A), "host": Claim(B)}) == Agreement(A, 0)
    new = agree("guest", {"guest": Claim(), "host": Claim(B)})
    assert new.round == 0 and new.run not in (A, B)


@pytest.mark.parametrize(
    ("guest", "host", "said"),
    [
        (Claim(A, (0, 5)), Claim(B, (0, 5)), "guest has run aaaaaaaa, round 5; host has run bbbb"),
        (Claim(), Claim(A, (0, 5)), "guest has no run; host has run aaaaaaaa, round 5"),
        (Claim(A, (0, 5)), Claim(), "host has no run"),
        (Claim(A, (0, 5)), Claim(B), "host has run bbbbbbbb, round 0"),
    ],
)
def test_what_somebody_kept_is_never_given_up_without_a_word(
    guest: Claim, host: Claim, said: str
) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        agree("guest", {"guest": guest, "host": host})
    assert "--out" in str(caught.value) and caught.value.public() == str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"run": None},
        {"run": A, "held": None},
        {"run": A, "held": [0, -1]},
        {"run": A, "held": [True]},
        {"run": A, "held": [1.0]},
        {"run": A, "held": ["0"]},
        {"run": A, "held": [10**30]},
        {"run": A, "held": list(range(1000))},
        {"run": A, "held": {"0": 1}},
        {"run": "a", "held": [0]},
        {"run": A.upper(), "held": [0]},
        {"run": 7, "held": [0]},
        {"run": "../" * 10 + "aa", "held": [0]},
    ],
)
def test_a_hello_that_makes_no_sense_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="HELLO of host"):
        Claim.from_body("host", body)


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"run": A},
        {"run": A, "from": -1},
        {"run": A, "from": True},
        {"run": A, "from": 5.0},
        {"run": A, "from": 7},
        {"run": B, "from": 5},
        {"run": None, "from": 0},
        {"run": [], "from": 0},
    ],
)
def test_a_ready_that_cannot_be_followed_is_refused(body: dict[str, Any] | None) -> None:
    with pytest.raises(ProtocolError, match="READY of guest"):
        Agreement.from_body("guest", body, Claim(A, (0, 5)))


def test_what_is_said_comes_across() -> None:
    claim = Claim(A, (0, 5, 9))
    assert Claim.from_body("host", claim.to_body()) == claim
    assert len(Claim(A, tuple(range(1000))).to_body()["held"]) < 1000
    agreement = Agreement(A, 9)
    assert Agreement.from_body("guest", agreement.to_body(), claim) == agreement


def run(fed: Federation, guest_at: Path, host_at: Path) -> celu.Result:
    to_host, to_guest = memory_links("guest", "host")
    kept = {p: Checkpoints(p, QuickDisk(), Inline()) for p in (guest_at, host_at)}
    programs = {
        "host": host_session(
            *("host", fed.hosts["host"], fed.job, to_guest, ignore),
            checkpoints=kept[host_at],
        ),
        "guest": guest_session(
            *("guest", fed.guest, fed.job, {"host": to_host}, ignore),
            checkpoints=kept[guest_at],
        ),
    }
    return _run_together(programs, [to_host])["guest"]


def test_folders_of_different_runs_are_refused_at_both_sides(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(federation(rounds=5), tmp_path / name / "guest", tmp_path / name / "host")
    with pytest.raises(CheckpointError, match=r"not of one run: guest has run .* host has run"):
        run(federation(rounds=5), tmp_path / "one" / "guest", tmp_path / "two" / "host")
    with pytest.raises(CheckpointError, match="host has no run"):
        run(federation(rounds=5), tmp_path / "one" / "guest", tmp_path / "new")
    assert Checkpoints(tmp_path / "one" / "guest").held()[-1] == 5  # nothing was dropped


def test_another_contract_than_the_folders_is_refused_by_the_name_of_the_field(
    tmp_path: Path,
) -> None:
    run(federation(rounds=5), tmp_path / "guest", tmp_path / "host")
    with pytest.raises(CheckpointError, match=r"seed: the run has 1, .* has 2.*--out"):
        run(federation(rounds=5, seed=2), tmp_path / "guest", tmp_path / "host")


def test_a_model_that_is_not_the_checkpoints_is_refused_by_the_name_of_the_tensor(
    tmp_path: Path,
) -> None:
    fed = federation(rounds=5)
    run(fed, tmp_path / "guest", tmp_path / "host")
    other = federation(rounds=5, hosts={"host": 6})
    wider = celu.models.tower.Tower(  # type: ignore[attr-defined]
        6, {"numbers": 4, "ids": 3}, {"ids": (20, 20, 20)}, embedding_dim=5, hidden=(8,)
    )
    host = other.hosts["host"]
    other.hosts["host"] = celu.Host(bottom=wider, train=host.train, test=host.test)
    with pytest.raises(CheckpointError, match=r"weights\.bottom\..*: expected .* got"):
        run(other, tmp_path / "guest", tmp_path / "host")


def test_a_party_that_keeps_nothing_can_take_part(tmp_path: Path) -> None:
    fed = federation(rounds=5)
    kept = {"guest": Checkpoints(tmp_path, QuickDisk(), Inline())}
    assert celu.simulate(fed.job, fed.guest, fed.hosts, checkpoints=kept).rounds == 5
    again = federation(rounds=5)
    with pytest.raises((CheckpointError, PeerFailed), match="host has no run"):
        celu.simulate(again.job, again.guest, again.hosts, checkpoints=kept)


def test_a_guest_that_sends_a_host_to_a_round_it_never_had_is_refused(tmp_path: Path) -> None:
    fed = federation(rounds=5)
    to_host, to_guest = memory_links("guest", "host")

    async def rogue() -> None:
        hello = await to_host.receive()
        assert hello.body is not None
        await to_host.send(Message(Kind.HELLO, body={**hello.body, "name": "guest"}))
        await to_host.send(Message(Kind.READY, body={"run": A, "from": 3}))
        await to_host.receive()

    host = host_session(
        *("host", fed.hosts["host"], fed.job, to_guest, ignore),
        checkpoints=Checkpoints(tmp_path, QuickDisk(), Inline()),
    )
    with pytest.raises(ProtocolError, match="round 3"):
        _run_together({"host": host, "guest": rogue()}, [to_host])  # type: ignore[dict-item]
    assert not (tmp_path / "run.json").exists()
