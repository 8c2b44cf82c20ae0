"""More rounds for a finished run give the bits of a run that had them from the start."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.checkpoint.generations import Checkpoints
from celu.engine.setup import RunTerms
from celu.errors import CheckpointError, ConfigError, ContractMismatch
from celu.events import RoundDone, ignore
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links
from engine.test_best import overfitting
from federation import Federation, federation
from psi.parties import run_to_completion
from slow.engine.test_resume import attempt, checkpoints, ends


def lengthened(fed: Federation, rounds: int) -> Federation:
    fed = copy.deepcopy(fed)
    job = fed.job.model_copy(update={"rounds": rounds, "epochs": None})
    return Federation(job, fed.guest, fed.hosts)


def simulate(fed: Federation, folder: Path, more: int = 0) -> celu.Result:
    fed = copy.deepcopy(fed)
    stores = checkpoints(folder, fed)
    return celu.simulate(fed.job, fed.guest, fed.hosts, checkpoints=stores, more=more)


def training_ends(fed: Federation, folder: Path) -> dict[str, Any]:
    """`ends`, without the evaluation at the end of the shorter run, where it has none."""
    return {key: value for key, value in ends(fed, folder).items() if "evaluations" not in key}


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize("rounds", [12, 13])
def test_a_finished_run_continues_like_one_that_was_longer_from_the_start(
    depth: int, validates: bool, rounds: int, tmp_path: Path
) -> None:
    method = celu.Method(R=3, W=3, depth=depth)
    fed = federation(rounds=rounds, method=method, checkpoint={"every": 2})
    if validates:
        fed = overfitting(depth=depth, rounds=rounds, checkpoint={"every": 2})
    simulate(fed, tmp_path / "short")
    result = simulate(fed, tmp_path / "short", more=9)
    longer = lengthened(fed, rounds + 9)
    expected = simulate(longer, tmp_path / "long")
    assert result.rounds == expected.rounds == rounds + 9
    assert training_ends(fed, tmp_path / "short") == training_ends(longer, tmp_path / "long")
    assert result.model.weights == expected.model.weights
    assert (result.best_round, result.test) == (expected.best_round, expected.test)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_with_a_schedule_the_added_rounds_have_the_rates_of_the_longer_run(
    schedule: str, tmp_path: Path
) -> None:
    fed = federation(
        rounds=12, checkpoint={"every": 2}, optimizer=celu.Optimizer(schedule=schedule)
    )
    simulate(fed, tmp_path / "short")
    result, rates = continued(fed, tmp_path / "short", 9)
    longer = lengthened(fed, 21)
    expected, all_rates = continued(longer, tmp_path / "long", 0)
    assert result.rounds == expected.rounds == 21
    assert set(rates) >= set(range(13, 22))
    assert {round_: all_rates[round_] for round_ in rates} == rates
    assert 0 < all_rates[12] < fed.job.optimizer.lr  # where the shorter run had ended, at 0
    # The rounds before had the rates of the shorter run.
    assert result.model.weights != expected.model.weights


def continued(fed: Federation, folder: Path, more: int) -> tuple[celu.Result, dict[int, float]]:
    """The result, and the learning rate of each round that was trained."""
    fed, rates = copy.deepcopy(fed), {}

    def note(event: celu.Event) -> None:
        if isinstance(event, RoundDone) and event.lr is not None:
            rates[event.round] = event.lr

    stores = checkpoints(folder, fed)
    result = celu.simulate(
        fed.job, fed.guest, fed.hosts, checkpoints=stores, more=more, callbacks=[note]
    )
    return result, rates


@pytest.mark.parametrize("depth", [1, 4])
def test_killed_while_it_continues_it_ends_with_the_same_bits(depth: int, tmp_path: Path) -> None:
    fed = overfitting(depth=depth, rounds=8, checkpoint={"every": 2})
    simulate(fed, tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "whole")
    expected = simulate(fed, tmp_path / "whole", more=6)
    for stop in range(4, 60, 5):
        folder = tmp_path / f"{stop}"
        shutil.copytree(tmp_path / "base", folder)
        stopped = interrupted(fed, folder, total=14, turns=stop)
        again, _ = attempt(fed, folder)  # without --more: the folder knows
        if not stopped and again is not None and again.rounds == 8:
            again = simulate(fed, folder, more=6)  # killed before any party had recorded it
        assert again is not None and again.rounds == 14
        assert ends(fed, folder) == ends(fed, tmp_path / "whole"), stop
        assert again.model.weights == expected.model.weights


def interrupted(fed: Federation, folder: Path, total: int, turns: int) -> bool:
    """Continue a run for some turns; returns whether both parties have recorded its new length."""
    fed = copy.deepcopy(fed)
    stores, (to_host, to_guest) = checkpoints(folder, fed), memory_links("guest", "host")
    terms = RunTerms(total_rounds=total)
    programs: list[Any] = [
        host_session(
            "host", fed.hosts["host"], fed.job, to_guest, ignore, checkpoints=stores["host"],
            terms=terms,
        ),
        guest_session(
            "guest", fed.guest, fed.job, {"host": to_host}, ignore, checkpoints=stores["guest"],
            terms=terms,
        ),
    ]  # fmt: skip
    for turn in range(turns):
        try:
            programs[turn % 2].send(None)
        except StopIteration:
            break
    for program in programs:
        program.close()
    recorded = [json.loads((folder / n / "run.json").read_text())["contract"] for n in stores]
    lengths = [contract.get("total_rounds") for contract in recorded]
    if len(set(lengths)) > 1:  # killed in between: a person passes --more at the other party
        for name in stores:
            path = folder / name / "run.json"
            if json.loads(path.read_text())["contract"].get("total_rounds") is None:
                interrupted_alone(fed, folder, total)
                break
    return lengths == [total, total]


def interrupted_alone(fed: Federation, folder: Path, total: int) -> None:
    """Finish the run with its new length given at all parties."""
    fed = copy.deepcopy(fed)
    stores, (to_host, to_guest) = checkpoints(folder, fed), memory_links("guest", "host")
    terms = RunTerms(total_rounds=total)
    host = host_session(
        "host",
        fed.hosts["host"],
        fed.job,
        to_guest,
        ignore,
        checkpoints=stores["host"],
        terms=terms,
    )
    guest = guest_session(
        "guest", fed.guest, fed.job, {"host": to_host}, ignore, checkpoints=stores["guest"],
        terms=terms,
    )  # fmt: skip
    run_to_completion({"guest": guest, "host": host}, {"guest": [to_host], "host": [to_guest]})


def test_a_run_that_ran_out_of_patience_continues_with_new_patience(tmp_path: Path) -> None:
    fed = overfitting(depth=3, rounds=30, patience=2, checkpoint={"every": 2})
    first = simulate(fed, tmp_path)
    assert first.rounds < 26
    again = simulate(fed, tmp_path, more=4)
    assert again.rounds == first.rounds + 4
    assert len(again.evaluations) == len(first.evaluations) + 2


def test_a_run_is_extended_twice(tmp_path: Path) -> None:
    fed = federation(rounds=6, method=celu.Method(R=2, depth=2), checkpoint={"every": 2})
    simulate(fed, tmp_path / "short")
    for more in (3, 5):
        result = simulate(fed, tmp_path / "short", more=more)
    longer = lengthened(fed, 14)
    simulate(longer, tmp_path / "long")
    assert result.rounds == 14
    assert training_ends(fed, tmp_path / "short") == training_ends(longer, tmp_path / "long")


def test_parties_that_do_not_agree_on_the_length_are_told_so_and_nothing_changes(
    tmp_path: Path,
) -> None:
    fed = federation(rounds=6, checkpoint={"every": 2})
    simulate(fed, tmp_path)
    before = ends(fed, tmp_path)
    stores, (to_host, to_guest) = checkpoints(tmp_path, fed), memory_links("guest", "host")
    guest = guest_session(
        "guest", fed.guest, fed.job, {"host": to_host}, ignore, checkpoints=stores["guest"],
        terms=RunTerms(total_rounds=9),
    )  # fmt: skip
    host = host_session(
        "host", fed.hosts["host"], fed.job, to_guest, ignore, checkpoints=stores["host"]
    )
    outcomes = run_to_completion(
        {"guest": guest, "host": host}, {"guest": [to_host], "host": [to_guest]}
    )
    for outcome in outcomes.values():
        assert isinstance(outcome, ContractMismatch)
        assert "total_rounds: " in str(outcome) and "Pass the same --more" in str(outcome)
    assert ends(fed, tmp_path) == before


def test_more_rounds_need_a_run_and_a_fixed_method(tmp_path: Path) -> None:
    fed = federation(rounds=6, checkpoint={"every": 2})
    with pytest.raises(ConfigError, match="start it without --more"):
        simulate(fed, tmp_path / "none", more=3)
    auto = federation(rounds=6, method="auto", checkpoint={"every": 2})
    simulate(auto, tmp_path / "auto")
    with pytest.raises(ConfigError, match="fixed method"):
        simulate(auto, tmp_path / "auto", more=3)


def test_another_contract_is_still_refused(tmp_path: Path) -> None:
    fed = federation(rounds=6, checkpoint={"every": 2})
    simulate(fed, tmp_path)
    other = lengthened(fed, 9)
    with pytest.raises(CheckpointError, match="another contract: rounds"):
        simulate(other, tmp_path, more=3)


def test_contracts_of_checkpoints_are_known_after_a_scan(tmp_path: Path) -> None:
    fed = federation(rounds=6, checkpoint={"every": 2})
    simulate(fed, tmp_path)
    simulate(fed, tmp_path, more=4)
    found = Checkpoints(tmp_path / "guest")
    rounds = found.scan()[1]
    lengths = {r: found.contracts[r].get("total_rounds") for r in rounds if r}
    assert lengths[10] == 10 and set(lengths.values()) <= {None, 10}
