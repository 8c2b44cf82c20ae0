"""`local_step_order`: local steps before or after the exchanged update of a round."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from federation import Federation, assert_same_bits, federation, train_in_memory
from slow.engine.test_resume import attempt, ends


def ordered(order: Any, R: int = 3, depth: int = 1, **job: Any) -> Federation:
    method = celu.Method(R=R, W=3, depth=depth, local_step_order=order)
    return federation(method=method, **job)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("overlapped", {"guest": "lldu lldu lldu", "host": "zllu zllu zllu"}),
        ("after-update", {"guest": "dull dull dull", "host": "zull zull zull"}),
    ],
)
def test_local_steps_come_where_the_contract_puts_them(
    order: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"guest": "", "host": ""}

    def record(trainer: type, role: str, method: str, letter: str) -> None:
        original = getattr(trainer, method)

        def recorded(*args: Any) -> Any:
            calls[role] += letter
            return original(*args)

        monkeypatch.setattr(trainer, method, recorded)

    record(GuestTrainer, "guest", "compute_derivatives", "d")
    record(GuestTrainer, "guest", "apply_update", "u")
    record(GuestTrainer, "guest", "local_step", "l")
    record(HostTrainer, "host", "compute_activation", "z")
    record(HostTrainer, "host", "update", "u")
    record(HostTrainer, "host", "local_step", "l")
    train_in_memory(ordered(order, rounds=3))
    assert calls == {role: letters.replace(" ", "") for role, letters in expected.items()}


@pytest.mark.parametrize("depth", [1, 4])
def test_without_local_steps_both_orders_give_the_same_bits(depth: int) -> None:
    after, overlapped = (
        train_in_memory(ordered(order, R=1, depth=depth))
        for order in ("after-update", "overlapped")
    )
    assert_same_bits(after, overlapped)


@pytest.mark.parametrize("depth", [1, 4])
def test_a_run_with_local_steps_after_the_update_resumes(depth: int, tmp_path: Path) -> None:
    fed = ordered("after-update", depth=depth, checkpoint={"every": 3})
    result, turns = attempt(fed, tmp_path / "whole")
    assert result is not None
    for stop in range(3, turns, max(1, turns // 6)):
        folder = tmp_path / f"{stop}"
        assert attempt(fed, folder, turns=stop)[0] is None
        assert attempt(fed, folder)[0] is not None
        assert ends(fed, folder) == ends(fed, tmp_path / "whole"), stop
        shutil.rmtree(folder)


def test_the_order_is_part_of_the_contract() -> None:
    after, overlapped = (ordered(order).job.contract() for order in ("after-update", "overlapped"))
    assert [key for key in after if after[key] != overlapped[key]] == ["method.local_step_order"]
