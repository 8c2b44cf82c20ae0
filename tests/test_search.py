"""A search finds the best values, stops bad trials early, and resumes as if never interrupted."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.config.space import Space, read_space
from celu.errors import ConfigError, DataError, ModelError, NonFiniteError
from celu.events import Evaluated
from celu.search import Objective, Progress, Search, Trial
from federation import federation

pytest.importorskip("optuna", reason="the extra tune is absent")
# Optuna's own imports emit warnings.
pytestmark = pytest.mark.filterwarnings("ignore")
LOSS = Objective("loss", higher_is_better=False)
SPACE = """
optimizer.lr = { low = 0.001, high = 0.3, log = true }
method.R.guest = [1, 3]
"""


def space_of(tmp_path: Path, text: str = SPACE) -> Space:
    path = tmp_path / "space.toml"
    path.write_text(text)
    return read_space(path, federation().job)


def search_at(folder: Path, space: Space, **more: Any) -> Search:
    return Search(folder, space, federation().job, **{"objective": LOSS, "rows": {}, **more})


def train(trial: Trial, job: celu.Job, progress: Progress) -> celu.Result:
    """Real training of a small federation."""
    fed = federation()
    return celu.simulate(job, fed.guest, fed.hosts, callbacks=[progress])


def follow(*losses: float, best_round: int | None = None) -> Any:
    """A trial whose evaluations are known in advance."""

    def train(trial: Trial, job: celu.Job, progress: Progress) -> Namespace:
        for n, loss in enumerate(losses, 1):
            progress(Evaluated(round=5 * n, seconds=0.0, **{"loss": loss}))
        return Namespace(best_round=best_round)

    return train


def run(search: Search, num_trials: int, train: Any = train) -> list[Trial]:
    with search.open() as made:
        for _ in range(len(made), num_trials):
            search.run_trial(train)
        return search.trials()


def test_the_best_trial_has_the_lowest_loss_and_its_job_has_the_values(tmp_path: Path) -> None:
    search = search_at(tmp_path / "out", space_of(tmp_path), prunes=False)
    trials = run(search, 8)
    best = search.best()
    assert best is not None and best.score == min(t.score for t in trials if t.score is not None)
    assert {t.status for t in trials} == {"done"} and {t.rounds for t in trials} == {14}
    job = search.job_of(best)
    assert job.optimizer.lr == best.values["optimizer.lr"]
    assert job.method.model_dump()["R"] == {"guest": best.values["method.R.guest"], "host": 1}
    fed = federation()
    result = celu.simulate(job, fed.guest, fed.hosts)
    assert result.metrics["loss"] == best.score  # the same bits again


def test_a_search_depends_on_its_seed_alone(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    one, two, other = (
        run(search_at(tmp_path / name, space, seed=seed), 4)
        for name, seed in (("one", 1), ("two", 1), ("other", 2))
    )
    assert one == two
    assert [t.values for t in one] != [t.values for t in other]


def test_an_interrupted_search_resumes_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    whole = run(search_at(tmp_path / "whole", space), 14)

    left = [4, 12]  # the trials in which the process is interrupted, once each

    def interrupted(trial: Trial, job: celu.Job, progress: Progress) -> celu.Result:
        result = train(trial, job, progress)
        if left and trial.number == left[0]:
            left.pop(0)
            raise KeyboardInterrupt
        return result

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(search_at(tmp_path / "parts", space), 14, interrupted)
    assert run(search_at(tmp_path / "parts", space), 14, interrupted) == whole


def test_a_trial_that_a_killed_process_left_is_made_again(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    whole = run(search_at(tmp_path / "whole", space), 2)
    search = search_at(tmp_path / "killed", space)
    with search.open():
        search.run_trial(train)
        search._study.ask(search._distributions)  # and the process ends here
    assert run(search_at(tmp_path / "killed", space), 2) == whole


def test_a_trial_below_the_median_is_stopped_early(tmp_path: Path) -> None:
    search = search_at(tmp_path / "out", space_of(tmp_path))
    with search.open():
        for _ in range(5):
            assert search.run_trial(follow(0.5, 0.4)).status == "done"
        bad, good = search.run_trial(follow(0.9, 0.1)), search.run_trial(follow(0.45, 0.3))
    assert (bad.status, bad.rounds, bad.score) == ("pruned", 5, 0.9)
    assert (good.status, good.rounds, good.score) == ("done", 10, 0.3)
    best = search.best()
    assert best is not None and best.number == good.number  # not the pruned one


def test_the_score_is_that_of_the_model_that_a_run_delivers(tmp_path: Path) -> None:
    search = search_at(tmp_path / "out", space_of(tmp_path))
    with search.open():
        assert search.run_trial(follow(0.5, 0.3, 0.4)).score == 0.4
        assert search.run_trial(follow(0.5, 0.3, 0.4, best_round=10)).score == 0.3


@pytest.mark.parametrize(
    ("loss", "metric", "expected"),
    [
        ("binary", "auc", Objective("auc", higher_is_better=True)),
        ("regression", None, LOSS),
        ("regression", "rmse", Objective("rmse", higher_is_better=False)),
    ],
)
def test_the_contracts_metric_decides_or_the_loss_if_the_default_does_not_fit(
    loss: str, metric: str | None, expected: Objective
) -> None:
    evaluation = celu.Evaluation() if metric is None else celu.Evaluation(metric=metric)
    fed = federation(loss=loss, evaluation=evaluation)
    assert Objective.of(fed.job, fed.guest) == expected


def test_a_metric_that_does_not_fit_is_refused_before_the_first_trial() -> None:
    fed = federation(loss="regression", evaluation=celu.Evaluation(metric="auc"))
    with pytest.raises(ConfigError, match=r"got auc, .* it decides which trial is the best"):
        Objective.of(fed.job, fed.guest)


def test_without_pruning_every_trial_ends(tmp_path: Path) -> None:
    search = search_at(tmp_path / "out", space_of(tmp_path), prunes=False)
    with search.open():
        for _ in range(5):
            search.run_trial(follow(0.5, 0.4))
        assert search.run_trial(follow(0.9, 0.1)).status == "done"


def test_a_trial_that_diverges_or_does_not_fit_ends_without_a_score(tmp_path: Path) -> None:
    def diverge(*_: object) -> None:
        raise NonFiniteError("the loss is NaN")

    def refuse(*_: object) -> None:
        raise ConfigError("warmup_rounds: too many")

    def break_module(*_: object) -> None:
        raise ModelError("the width of Z: expected 8, got 12\n  line 3")

    def break_down(*_: object) -> None:
        raise DataError("the store is gone")

    search = search_at(tmp_path / "out", space_of(tmp_path))
    with search.open():
        assert search.run_trial(diverge).status == "diverged: NaN or Inf"
        assert search.run_trial(refuse).status == "warmup_rounds: too many"
        assert search.run_trial(break_module).status == "the width of Z: expected 8, got 12"
        assert search.best() is None
        with pytest.raises(DataError):
            search.run_trial(break_down)
        assert len(search.trials()) == 3  # an error of the machine is no result


def test_equal_values_are_trained_once(tmp_path: Path) -> None:
    trained: list[int] = []

    def count(trial: Trial, job: celu.Job, progress: Progress) -> celu.Result:
        trained.append(job.method.model_dump()["R"]["guest"])
        return train(trial, job, progress)

    trials = run(
        search_at(tmp_path / "out", space_of(tmp_path, "method.R.guest = [1, 3]")), 6, count
    )
    assert sorted(trained) == [1, 3] and len(trials) == 6
    assert len({(t.values["method.R.guest"], t.score) for t in trials}) == 2


@pytest.mark.parametrize(
    ("change", "what"),
    [({"seed": 9}, "seed"), ({"rows": {"guest": 1}}, "rows"), ({"prunes": False}, "prune")],
)
def test_another_search_is_not_mixed_with_the_one_in_the_folder(
    change: dict[str, Any], what: str, tmp_path: Path
) -> None:
    space = space_of(tmp_path)
    run(search_at(tmp_path / "out", space), 1)
    with pytest.raises(ConfigError, match=f"got another {what}; choose another folder"):
        run(search_at(tmp_path / "out", space, **change), 2)
    with pytest.raises(ConfigError, match="got another space"):
        run(search_at(tmp_path / "out", space_of(tmp_path, "method.R.guest = [1, 5]")), 2)


def test_two_processes_cannot_use_one_search(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    with (
        search_at(tmp_path / "out", space).open(),
        pytest.raises(ConfigError, match="another process uses this search"),
        search_at(tmp_path / "out", space).open(),
    ):
        pass


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install .celu\[tune\]"):
        search_at(tmp_path, space_of(tmp_path))
