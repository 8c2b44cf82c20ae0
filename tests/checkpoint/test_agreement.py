"""The round from which the parties resume, and the proposals that they refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.checkpoint.agreement import Agreement, Inventory, agree
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import InlineWriter
from celu.errors import CheckpointError, PeerFailed, ProtocolError
from celu.events import ignore
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links, run_together
from celu.transport.message import Kind, Message
from checkpoint.disks import QuickDisk
from federation import Federation, assert_same_bits, federation

A, B = "a" * 32, "b" * 32


def test_parties_resume_from_the_newest_round_that_all_have() -> None:
    inventories = {
        "guest": Inventory(A, (0, 10, 20, 30)),
        "one": Inventory(A, (0, 10, 20)),
        "two": Inventory(A, (0, 20, 30)),
    }
    assert agree("guest", inventories, 2) == Agreement(A, 20)
    assert agree("guest", {**inventories, "two": Inventory(A, (0, 30))}, 3) == Agreement(A, 0)


def test_without_checkpoints_the_guests_run_id_is_used() -> None:
    assert agree("guest", {"guest": Inventory(A), "host": Inventory(B)}, 2) == Agreement(A, 0)
    new = agree("guest", {"guest": Inventory(), "host": Inventory(B)}, 2)
    assert new.round == 0 and new.run not in (A, B)


@pytest.mark.parametrize(
    ("guest", "host", "expected"),
    [
        (
            Inventory(A, (0, 5)),
            Inventory(B, (0, 5)),
            "guest has run aaaaaaaa, round 5; host has run bbbb",
        ),
        (Inventory(), Inventory(A, (0, 5)), "guest has no run; host has run aaaaaaaa, round 5"),
        (Inventory(A, (0, 5)), Inventory(), "host has no run"),
        (Inventory(A, (0, 5)), Inventory(B), "host has run bbbbbbbb, round 0"),
    ],
)
def test_checkpoints_of_different_runs_are_refused_not_discarded(
    guest: Inventory, host: Inventory, expected: str
) -> None:
    with pytest.raises(CheckpointError, match=expected) as caught:
        agree("guest", {"guest": guest, "host": host}, 2)
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
def test_a_malformed_hello_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="HELLO of host"):
        Inventory.from_body("host", body)


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
def test_a_ready_that_the_host_cannot_resume_from_is_refused(body: dict[str, Any] | None) -> None:
    with pytest.raises(ProtocolError, match="READY of guest"):
        Agreement.from_body("guest", body, "host", {"host": Inventory(A, (0, 5))}, 2)


def test_inventory_and_agreement_round_trip() -> None:
    inventory = Inventory(A, (0, 5, 9))
    assert Inventory.from_body("host", inventory.to_body()) == inventory
    assert len(Inventory(A, tuple(range(1000))).to_body()["held"]) < 1000
    agreement = Agreement(A, 9)
    inventories = {"host": inventory}
    assert Agreement.from_body("guest", agreement.to_body(), "host", inventories, 0) == agreement


def run(fed: Federation, guest_at: Path, host_at: Path) -> celu.Result:
    to_host, to_guest = memory_links("guest", "host")
    checkpoints = {p: Checkpoints(p, QuickDisk(), InlineWriter()) for p in (guest_at, host_at)}
    programs = {
        "host": host_session(
            *("host", fed.hosts["host"], fed.job, to_guest, ignore),
            checkpoints=checkpoints[host_at],
        ),
        "guest": guest_session(
            *("guest", fed.guest, fed.job, {"host": to_host}, ignore),
            checkpoints=checkpoints[guest_at],
        ),
    }
    return run_together(programs, [to_host])["guest"]


def test_folders_of_different_runs_are_refused_at_both_sides(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(federation(rounds=5), tmp_path / name / "guest", tmp_path / name / "host")
    with pytest.raises(CheckpointError, match=r"different runs: guest has run .* host has run"):
        run(federation(rounds=5), tmp_path / "one" / "guest", tmp_path / "two" / "host")
    with pytest.raises(CheckpointError, match="host has no run"):
        run(federation(rounds=5), tmp_path / "one" / "guest", tmp_path / "new")
    assert (
        Checkpoints(tmp_path / "one" / "guest").available_rounds()[-1] == 5
    )  # nothing is discarded


def test_a_changed_contract_is_refused_and_the_field_is_named(
    tmp_path: Path,
) -> None:
    run(federation(rounds=5), tmp_path / "guest", tmp_path / "host")
    with pytest.raises(CheckpointError, match=r"seed: the run has 1, .* has 2.*--out"):
        run(federation(rounds=5, seed=2), tmp_path / "guest", tmp_path / "host")


def test_a_model_that_does_not_fit_the_checkpoint_is_refused_and_the_tensor_is_named(
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


def test_a_party_without_checkpoints_can_take_part_but_not_resume(tmp_path: Path) -> None:
    fed = federation(rounds=5)
    checkpoints = {"guest": Checkpoints(tmp_path, QuickDisk(), InlineWriter())}
    assert celu.simulate(fed.job, fed.guest, fed.hosts, checkpoints=checkpoints).rounds == 5
    again = federation(rounds=5)
    with pytest.raises((CheckpointError, PeerFailed), match="host has no run"):
        celu.simulate(again.job, again.guest, again.hosts, checkpoints=checkpoints)


def test_a_guest_that_resumes_from_a_round_that_the_host_lacks_is_refused(tmp_path: Path) -> None:
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
        checkpoints=Checkpoints(tmp_path, QuickDisk(), InlineWriter()),
    )
    with pytest.raises(ProtocolError, match="round 3"):
        run_together({"host": host, "guest": rogue()}, [to_host])  # type: ignore[dict-item]
    assert not (tmp_path / "run.json").exists()


LONG: dict[str, Any] = {"rounds": 40, "checkpoint": {"every": 5}}


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("loses", ["guest", "host"])
def test_a_lost_checkpoints_folder_stops_both_parties_and_changes_nothing(
    tmp_path: Path, loses: str
) -> None:
    run(federation(**LONG), tmp_path / "guest", tmp_path / "host")
    shutil.rmtree(tmp_path / loses / "checkpoints")
    before = content(tmp_path)
    other = "host" if loses == "guest" else "guest"
    with pytest.raises(CheckpointError, match=f"{loses} has no checkpoint") as caught:
        run(federation(**LONG), tmp_path / "guest", tmp_path / "host")
    said = str(caught.value)
    assert f"{other} has checkpoints of rounds" in said and "35, 40" in said
    assert "--restart-from 0" in said and caught.value.public() == said
    assert content(tmp_path) == before


def test_a_person_can_restart_all_parties_from_an_earlier_round(tmp_path: Path) -> None:
    whole = federation(**LONG)
    run(whole, tmp_path / "guest", tmp_path / "host")
    shutil.rmtree(tmp_path / "guest" / "checkpoints")
    for name in ("guest", "host"):
        Checkpoints(tmp_path / name, QuickDisk()).restart_from(0)
    again = federation(**LONG)
    assert run(again, tmp_path / "guest", tmp_path / "host").rounds == 40
    assert_same_bits(again.weights(), whole.weights())


@pytest.mark.parametrize("claims", [[0], None], ids=["none", "the same as the host"])
def test_a_guest_cannot_make_a_host_give_up_its_checkpoints(
    tmp_path: Path, claims: list[int] | None
) -> None:
    run(federation(**LONG), tmp_path / "guest", tmp_path / "host")
    before = content(tmp_path)
    fed = federation(**LONG)
    to_host, to_guest = memory_links("guest", "host")

    async def rogue() -> None:
        body = (await to_host.receive()).body or {}
        held = body["held"] if claims is None else claims
        await to_host.send(Message(Kind.HELLO, body={**body, "name": "guest", "held": held}))
        await to_host.send(Message(Kind.READY, body={"run": body["run"], "from": 0}))
        await to_host.receive()

    host = host_session(
        *("host", fed.hosts["host"], fed.job, to_guest, ignore),
        checkpoints=Checkpoints(tmp_path / "host", QuickDisk(), InlineWriter()),
    )
    with pytest.raises(CheckpointError, match="would repeat more than 2 checkpoints"):
        run_together({"host": host, "guest": rogue()}, [to_host])  # type: ignore[dict-item]
    assert content(tmp_path) == before


def test_many_small_steps_back_are_refused_like_a_large_one() -> None:
    stepped_back = Inventory(A, (0, 10), superseded=(20, 30))
    assert agree("guest", {"guest": stepped_back}, 2) == Agreement(A, 10)
    both = {"guest": Inventory(A, (0,)), "host": stepped_back}
    with pytest.raises(CheckpointError, match="--restart-from 0"):
        agree("guest", both, 2)
    with pytest.raises(CheckpointError, match="--restart-from 0"):
        Agreement.from_body("guest", {"run": A, "from": 0}, "host", {"host": stepped_back}, 2)
