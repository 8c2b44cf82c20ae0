"""Runs under an old contract give the old bits, and old checkpoints resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from federation import train_in_memory
from golden.record import HERE, INTERRUPTED, digest, norms, platform_key
from slow.engine.test_resume import CASES, attempt, ends

RECORDED = json.loads((HERE / "trajectories.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_run_gives_the_bits_that_earlier_releases_gave(case: str) -> None:
    weights = train_in_memory(CASES[case]())
    recorded = RECORDED[case]
    assert norms(weights) == pytest.approx(recorded["norms"], rel=1e-3)
    here = platform_key()
    if here in recorded["sha256"]:  # elsewhere the CPU's own rounding differs
        assert digest(weights) == recorded["sha256"][here]


@pytest.mark.parametrize("case", INTERRUPTED)
def test_a_run_resumes_from_the_checkpoints_of_an_earlier_release(
    case: str, tmp_path: Path
) -> None:
    fed = CASES[case]()
    shutil.copytree(HERE / "interrupted" / case.replace(" ", "-"), tmp_path / "resumed")
    result, turns = attempt(fed, tmp_path / "resumed")
    whole, all_turns = attempt(fed, tmp_path / "whole")
    assert result is not None and whole is not None
    assert turns < all_turns
    if platform_key() in RECORDED[case]["sha256"]:
        assert ends(fed, tmp_path / "resumed") == ends(fed, tmp_path / "whole")


def test_a_run_that_was_drained_at_evaluations_resumes_and_ends_with_other_bits(
    tmp_path: Path,
) -> None:
    # The checkpoint is of round 3. Nothing was to be in flight at the evaluation after round 5, so
    # fewer rounds are in flight than in a run of this release, and the updates have another order.
    fed = CASES["depth 8"]()
    shutil.copytree(HERE / "interrupted" / "depth-8-drained", tmp_path / "resumed")
    result, _ = attempt(fed, tmp_path / "resumed")
    attempt(fed, tmp_path / "whole")
    assert result is not None and result.rounds == 14
    resumed, whole = (ends(fed, tmp_path / name) for name in ("resumed", "whole"))
    assert resumed.keys() == whole.keys() and resumed != whole
