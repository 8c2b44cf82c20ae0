"""The best weights survive interruptions: a resumed run delivers the same model, bit for bit."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.errors import CheckpointError
from engine.test_best import OVERFITS, overfitting, train
from federation import Federation, assert_same_bits, federation, train_over_grpc, with_validation
from slow.engine.test_resume import attempt, ends, run_auto


def best_in(folder: Path) -> dict[str, Any]:
    """What the last checkpoint of each party says about the best model."""
    found = {}
    for party in ("guest", "host"):
        last = sorted((folder / party / "checkpoints").iterdir())[-1]
        found[party] = json.loads((last / "state.json").read_text())["state"]["best"]
    return found


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("checkpoint_every", [2, 3])
@pytest.mark.parametrize("patience", [None, 3])
def test_interrupted_anywhere_it_delivers_the_same_model(
    depth: int, checkpoint_every: int, patience: int | None, tmp_path: Path
) -> None:
    # Every 2 rounds a host copies its state before it knows the verdict on these very weights.
    fed = overfitting(
        depth=depth, rounds=20, patience=patience, checkpoint={"every": checkpoint_every}
    )
    result, turns = attempt(fed, tmp_path / "whole")
    assert result is not None and result.best_round is not None
    assert result.best_round < result.rounds
    for stop in range(3, turns, max(1, turns // 20)):
        folder = tmp_path / f"{stop}"
        assert attempt(fed, folder, turns=stop)[0] is None
        again, _ = attempt(fed, folder)
        assert again is not None
        assert ends(fed, folder) == ends(fed, tmp_path / "whole"), stop
        assert best_in(folder) == best_in(tmp_path / "whole"), stop
        assert again.model.weights == result.model.weights
        assert (again.best_round, again.test) == (result.best_round, result.test)
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_checkpoints_do_not_change_the_delivered_model(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    fed = overfitting(depth=4, rounds=20, checkpoint={"every": 2})
    whole, _ = attempt(fed, tmp_path / "whole")
    folder = tmp_path / "interrupted"
    for _ in range(6):
        attempt(fed, folder, turns=chance.randrange(5, 60), chance=chance)
        for name in ("guest", "host"):
            generations = sorted((folder / name).glob("checkpoints/round-*"))
            if generations and chance.random() < 0.3:
                (chance.choice(generations) / "state.json").write_text("{}")
    result, _ = attempt(fed, folder)
    assert result is not None and whole is not None
    assert ends(fed, folder) == ends(fed, tmp_path / "whole")
    assert result.model.weights == whole.model.weights


def test_a_finished_run_that_is_started_again_delivers_the_same_model(tmp_path: Path) -> None:
    fed = overfitting(depth=4, rounds=20, codec="int8", checkpoint={"every": 2})
    first, many = attempt(fed, tmp_path)
    again, few = attempt(fed, tmp_path)
    assert first is not None and again is not None and few < many
    assert again.model.weights == first.model.weights
    assert (again.rounds, again.best_round, again.test) == (20, first.best_round, first.test)


def test_the_same_model_is_delivered_over_sockets(tmp_path: Path) -> None:
    # Without dropout: here the parties are threads, which share torch's random numbers.
    evaluation = celu.Evaluation(every=2, metric="loss", patience=2)
    method = celu.Method(R=3, W=3, depth=4)
    fed = with_validation(
        federation(rounds=30, optimizer=OVERFITS, method=method, evaluation=evaluation)
    )
    results: list[celu.Result] = []
    weights = train_over_grpc(fed, tmp_path, result=results.append)
    expected, _ = train(fed)
    assert_same_bits(weights, fed.weights())
    assert (results[0].best_round, results[0].test) == (expected.best_round, expected.test)


def test_best_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    fed = overfitting(rounds=6, checkpoint={"every": 2})
    attempt(fed, tmp_path)
    other = overfitting(rounds=6, checkpoint={"every": 2}, guest_has_features=False)
    with pytest.raises(CheckpointError, match=r"best\.top.*does not fit the model"):
        attempt(other, tmp_path)


def auto() -> Federation:
    fed = federation(
        rounds=200,
        hosts={"host": 64},
        method=celu.Method(auto=True),
        evaluation=celu.Evaluation(every=10, metric="auc"),
        checkpoint={"every": 10},
    )
    return with_validation(fed)


def test_an_auto_run_resumes_with_its_best_model(tmp_path: Path) -> None:
    fed = auto()
    whole, events, _ = run_auto(fed, tmp_path / "whole")
    assert whole.best_round is not None
    restored = [e["round"] for e in events if e["event"] == "evaluation" and e["best"]]
    assert restored[-1] == whole.best_round
    stopped, *_ = run_auto(fed, tmp_path / "stopped", stop=len(events) - 40)
    assert stopped is None
    resumed, *_ = run_auto(fed, tmp_path / "stopped")
    # Its choices depend on time, so another run may choose differently; but the model is the best.
    best = max(resumed.evaluations, key=lambda e: e["auc"])
    assert resumed.best_round == best["round"] == resumed.model.round
