"""`scripts/chaos`: totals, traces and the exit code."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from celu.errors import CeluError
from chaos import run as chaos_run
from chaos import sweep
from chaos.__main__ import app
from chaos.checks import InvariantViolated
from chaos.party_process import Party


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False).output


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_prints_the_faults_and_how_processes_ended(workers: str) -> None:
    text = run("--seeds", "21", "--first", "4", "--workers", workers)
    assert "21 runs, 0 failed" in text
    for word in ("injected faults", "how processes ended", "done", "per minute"):
        assert word in text


def test_one_seed_prints_its_trace() -> None:
    text = run("--seed", "9")
    assert re.search(r"guest  nemesis: flip of guest-host at 0\.\d+ s", text)
    assert "seed 9: all parties ended with the same bits as without faults" in text


def broken(party: Party) -> None:
    raise InvariantViolated(f"{party.name} fails in this test")


def test_an_error_names_the_seeds_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chaos_run.run_without_faults(14)  # the scenario of seed 9, before the patch
    monkeypatch.setattr(chaos_run, "check_durable", broken)
    with pytest.raises(
        CeluError, match=r"1 of 1 seeds violated .*: 9\. Run scripts/chaos --seed 9"
    ):
        run("--seeds", "1", "--first", "9")
    with pytest.raises(CeluError, match=r"seed 9 violated an invariant: \w+ fails in this test"):
        run("--seed", "9")


def test_the_totals_include_all_seeds() -> None:
    progress: list[int] = []

    def on_progress(totals: sweep.Totals) -> None:
        progress.append(totals.num_seeds)

    seeds: Sequence[int] = range(25)
    totals = sweep.run_seeds(seeds, on_progress=on_progress)
    assert progress == [20, 25]
    assert totals.ends["done"] >= 2 * len(seeds)
    assert totals.failed == []
