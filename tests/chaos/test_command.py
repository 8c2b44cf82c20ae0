"""`scripts/chaos`: totals and traces for people, and an exit code for machines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from celu.errors import CeluError
from chaos import many, running
from chaos.__main__ import app
from chaos.checks import Violated
from chaos.life import Party


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False).output


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_says_what_struck_and_how_processes_ended(workers: str) -> None:
    text = run("--seeds", "21", "--first", "4", "--workers", workers)
    assert "21 runs, 0 failed" in text
    for word in ("what struck", "how processes ended", "done", "a minute"):
        assert word in text


def test_one_seed_shows_all_that_happens() -> None:
    text = run("--seed", "9")
    assert "guest  nemesis: flip of guest-host at 0.72 s" in text
    assert "seed 9: all parties ended with the bits of the undisturbed run" in text


def broken(party: Party) -> None:
    raise Violated(f"{party.name} is made to fail")


def test_seeds_that_fail_are_named_and_end_it_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running.undisturbed(7)  # of seed 9, before anything is broken
    monkeypatch.setattr(running, "check_durable", broken)
    with pytest.raises(CeluError, match=r"1 of 1 seeds broke .*: 9\. scripts/chaos --seed 9"):
        run("--seeds", "1", "--first", "9")
    with pytest.raises(CeluError, match=r"seed 9 broke a promise: \w+ is made to fail"):
        run("--seed", "9")


def test_the_totals_are_those_of_all_seeds() -> None:
    heard: list[int] = []

    def told(totals: many.Totals) -> None:
        heard.append(totals.num_seeds)

    seeds: Sequence[int] = range(25)
    totals = many.run_seeds(seeds, told=told)
    assert heard == [20, 25]
    assert totals.ends["done"] >= 2 * len(seeds)
    assert totals.failed == []
