"""`scripts/bench privacy`: noise that is drawn once, its rows of a teacher, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import celu
from bench import privacy, privacy_at_scale, privacy_runs
from bench.memoized_noise import with_noise
from bench.parallel_runs import SavedRuns, run_all
from bench.privacy_runs import Defence, Pair, Rows
from bench.teacher_rows import Teacher
from celu.audit.recorder import Recorder
from celu.audit.sample import RowSample

ROWS = 1024


def synthetic(num_rows: int = 3 * ROWS) -> Pair:
    """A label that depends on the guest's number and on an id of the host."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 1, generator=random)
    ids = torch.randint(0, 4, (num_rows, 1), generator=random)
    labels = (x[:, 0] + ids[:, 0] + torch.randn(num_rows, generator=random) > 2).float()

    def rows(part: slice) -> tuple[celu.Dataset, celu.Dataset]:
        guest = celu.Dataset({"numbers": x[part]}, labels[part])
        return guest, celu.Dataset({"ids": ids[part]}, sizes={"ids": (4,)})

    train, test = rows(slice(0, 2 * ROWS)), rows(slice(2 * ROWS, None))
    return Pair(Rows(train[0], test[0]), Rows(train[1], test[1]))


def test_noise_that_is_drawn_once_is_the_same_at_every_exposure_of_a_row() -> None:
    train = synthetic().guest.train
    sample = RowSample(train, bytes(32), 400)
    recorder = Recorder(sample, 2)
    assert train.labels is not None
    is_positive = train.labels[torch.from_numpy(sample.row_numbers)] == 1
    dz = torch.randn(400, 4) + is_positive[:, None]
    every = torch.arange(400)
    for _ in range(2):
        recorder.add(every, {"dz.host": dz, "forecast": torch.zeros(400, 1)})
    recorder.add(every[:7], {"dz.host": dz[:7], "forecast": torch.zeros(7, 1)})
    found = with_noise(recorder, is_positive, 8.0).exposures("dz.host")
    assert torch.equal(found[:, 0], found[:, 1])
    assert not torch.equal(found[:, 0], dz)


def test_a_teacher_draws_labels_with_the_odds_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.teacher_rows.TEST_ROWS", 2000)
    teacher = Teacher.trained(synthetic(), seed=1)
    one, other = teacher.rows(20_000, seed=1), teacher.rows(20_000, seed=2)
    for pair in (one, other):
        guest, host = pair.guest.train, pair.host.train
        assert guest.num_rows == host.num_rows == 20_000 and guest.labels is not None
        expected = teacher._probabilities(guest, host).mean()
        assert float(guest.labels.mean()) == pytest.approx(float(expected), abs=0.01)
    assert one.guest.train.labels is not None and other.guest.train.labels is not None
    assert not torch.equal(one.guest.train.labels, other.guest.train.labels)


def test_swapped_parties_have_each_others_columns_and_the_labels_stay() -> None:
    pair = synthetic()
    swapped = pair.swapped()
    assert set(swapped.guest.train.inputs) == {"ids"} and set(swapped.host.test.inputs) == {
        "numbers"
    }
    assert swapped.guest.train.labels is pair.guest.train.labels
    assert swapped.host.train.labels is None and swapped.guest.train.sizes == {"ids": (4,)}


def test_figures_are_those_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "read_sample", lambda data, folder: synthetic())
    monkeypatch.setattr(privacy_runs, "AUDITED", 1000)
    monkeypatch.setattr(privacy, "EPOCHS", (1, 2))
    monkeypatch.setattr(privacy, "CPU_ROUNDS", 2)
    monkeypatch.setattr(privacy, "CPU_TURNS", 1)
    result = privacy.bench_privacy(lambda line: None, Path(), [1])
    by_run = {(row["defence"], row["epochs"]): row for row in result.rows if "epochs" in row}
    assert len(by_run) == 2 * len(privacy.DEFENCES) + len(privacy.Z_DEFENCES)
    columns = {d.name: by_run[d.name, 1] for d in privacy.Z_DEFENCES}
    exact, *_, noisy = columns.values()
    assert (
        exact["worst column"] > 0.9 > noisy["worst column"]
        and exact["epsilon of a row's Z"] is None
    )
    assert noisy["epsilon of a row's Z"] == pytest.approx(11.0, abs=0.1)
    none, twin = by_run["none", 1], by_run["twin, epsilon 1", 1]
    figures = result.figures
    assert figures["none_own"] == none["own AUC"] > 0.9
    assert figures["eps1_own"] == twin["own AUC"] < none["own AUC"]
    assert figures["eps1_cost"] == none["model AUC"] - twin["model AUC"]
    assert -0.5 < figures["eps1_cost_default"] < 0.5 and figures["eps1_cost_default"] != 0
    longer = by_run["twin, epsilon 1", 2]["own AUC"]
    assert figures["five_over_one_own"] == longer / twin["own AUC"]
    assert all("seconds" not in row for row in result.rows) and figures["audit_s"]
    slow = [row for row in result.rows if row.get("lr") == privacy.SMALL_LR]
    assert figures["none_cached_gain"] == slow[0]["cached gain"]
    assert slow[0]["cached gain"] == slow[0]["cached"] - slow[0]["vanilla"]


def test_the_cost_at_scale_is_the_auc_that_the_twin_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_at_scale, "read_sample", lambda data, folder: synthetic())
    monkeypatch.setattr("bench.teacher_rows.TEST_ROWS", 1000)
    scales = [
        replace_rows(rows, 2048 * n) for n, rows in enumerate(privacy_at_scale.SCALES, start=1)
    ]
    monkeypatch.setattr(privacy_at_scale, "SCALES", scales)
    result = privacy_at_scale.bench_privacy_at_scale(lambda line: None, Path(), [1])
    first, twin = result.rows[:2]
    assert first["cost"] == 0 and twin["cost"] == first["AUC"] - twin["AUC"]
    assert result.figures["eps1_cost_163k"] == twin["cost"]
    assert result.figures["eps04_cost_10m"] == result.rows[-1]["cost"]
    assert len(result.rows) == 8


def test_a_bench_that_is_started_again_repeats_no_finished_run(tmp_path: Path) -> None:
    path, calls = tmp_path / "runs.jsonl", []

    @dataclass(frozen=True)
    class Run:
        number: int

        def __call__(self, source: str) -> float:
            calls.append(self.number)
            return float(self.number)

    run_all(lambda line: None, [Run(1), Run(2)], lambda: "rows", saved=SavedRuns(path))
    with path.open("a") as file:
        file.write('{"run": "half a li')  # it was stopped here
    again = run_all(lambda line: None, [Run(1), Run(2), Run(3)], lambda: "rows", 1, SavedRuns(path))
    assert calls == [1, 2, 3] and [*again.values()] == [1.0, 2.0, 3.0]


def replace_rows(
    scale: tuple[int, tuple[Defence, ...]], num_rows: int
) -> tuple[int, tuple[Defence, ...]]:
    return (num_rows, scale[1])
