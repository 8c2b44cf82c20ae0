"""`scripts/bench privacy`: its noise, its rows of a teacher, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import celu
from bench import privacy, privacy_runs
from bench.gradient_noise import NoisyTop, isotropic, marvell
from bench.memoized_noise import with_noise
from bench.privacy_runs import Defence, Pair, Rows
from bench.teacher_rows import Teacher
from celu.audit.recorder import Recorder
from celu.audit.sample import RowSample
from celu.models.tops import WideDeepTop

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


def gradients() -> tuple[Tensor, Tensor]:
    """dZ of 4,000 rows, a quarter positive: positives are apart on one line, and vary more."""
    random = torch.Generator().manual_seed(0)
    is_positive = torch.arange(4000) % 4 == 0
    dz = torch.randn(4000, 8, generator=random) * torch.where(is_positive, 0.2, 0.1)[:, None]
    dz[:, 0] += torch.where(is_positive, 1.5, -0.5)
    return dz, is_positive


@pytest.mark.parametrize("noise", [marvell, isotropic])
def test_noise_has_the_power_that_s_says_and_no_mean(noise: Callable[..., Tensor]) -> None:
    dz, is_positive = gradients()
    added = noise(3.0, dz, is_positive, torch.Generator().manual_seed(1)) - dz
    assert float(added.square().sum(dim=1).mean()) == pytest.approx(3 * 2.0**2, rel=0.1)
    assert float(added.mean(dim=0).abs().max()) < 0.2


def test_marvell_makes_both_classes_vary_alike_across_the_line_between_them() -> None:
    dz, is_positive = gradients()
    noisy = marvell(8.0, dz, is_positive, torch.Generator().manual_seed(1))
    across = noisy[:, 1:].std(dim=0).mean(), noisy[is_positive, 1:].std(dim=0).mean()
    assert float(across[0]) == pytest.approx(float(across[1]), rel=0.05)
    along = [float(noisy[rows, 0].std()) for rows in (is_positive, ~is_positive)]
    assert along[0] == pytest.approx(along[1], rel=0.15) and min(along) > 4


def test_where_dz_has_few_directions_the_noise_of_marvell_marks_one_class() -> None:
    random = torch.Generator().manual_seed(0)
    is_positive = torch.arange(4000) % 4 == 0
    size = torch.where(is_positive, 0.3, 0.1)[:, None]
    dz = torch.cat([torch.randn(4000, 2, generator=random) * size, torch.zeros(4000, 30)], dim=1)
    dz[:, 0] += torch.where(is_positive, 1.5, -0.5)
    noisy = marvell(8.0, dz, is_positive, torch.Generator().manual_seed(1))
    elsewhere = noisy[:, 2:].norm(dim=1)  # where dZ of neither class has anything
    assert float(elsewhere[is_positive].max()) < float(elsewhere[~is_positive].min())


def test_a_noisy_top_changes_the_derivative_of_z_and_no_gradient_of_its_own() -> None:
    torch.manual_seed(0)
    top = WideDeepTop((4, 4), hidden=(8,))
    own, z = torch.randn(64, 4), torch.randn(64, 4)
    labels = (torch.arange(64) % 2).float()

    def gradients_of(noisy: NoisyTop) -> tuple[Tensor, list[Tensor]]:
        leaf = z.clone().requires_grad_()
        top.zero_grad()
        noisy.loss(noisy(own, leaf), labels).mean().backward()
        assert leaf.grad is not None
        return leaf.grad, [p.grad.clone() for p in top.parameters() if p.grad is not None]

    exact, weights = gradients_of(NoisyTop(top, lambda dz, _, __: dz, 1))
    noisy, same = gradients_of(NoisyTop(top, lambda dz, is_positive, __: dz + 1, 1))
    assert torch.equal(noisy, exact + 1)
    assert len(same) == 2 and all(map(torch.equal, weights, same))


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
    assert len(by_run) == 2 * len(privacy.DEFENCES)
    none, twin = by_run["none", 1], by_run["twin, epsilon 1", 1]
    figures = result.figures
    assert figures["none_own"] == none["own AUC"] > 0.9
    assert figures["eps1_own"] == twin["own AUC"] < none["own AUC"]
    assert figures["eps1_cost"] == none["model AUC"] - twin["model AUC"]
    longer = by_run["twin, epsilon 1", 2]["own AUC"]
    assert figures["five_over_one_own"] == longer / twin["own AUC"]
    assert all("seconds" not in row for row in result.rows) and figures["audit_s"]
    slow = [row for row in result.rows if row.get("lr") == privacy.SMALL_LR]
    assert figures["none_cached_gain"] == slow[0]["cached gain"]
    assert slow[0]["cached gain"] == slow[0]["cached"] - slow[0]["vanilla"]


def test_the_cost_at_scale_is_the_auc_that_the_twin_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "read_sample", lambda data, folder: synthetic())
    monkeypatch.setattr("bench.teacher_rows.TEST_ROWS", 1000)
    scales = [replace_rows(rows, 2048 * n) for n, rows in enumerate(privacy.SCALES, start=1)]
    monkeypatch.setattr(privacy, "SCALES", scales)
    result = privacy.bench_privacy_at_scale(lambda line: None, Path(), [1])
    first, twin = result.rows[:2]
    assert first["cost"] == 0 and twin["cost"] == first["AUC"] - twin["AUC"]
    assert result.figures["eps1_cost_163k"] == twin["cost"]
    assert result.figures["eps04_cost_10m"] == result.rows[-1]["cost"]
    assert len(result.rows) == 8


def replace_rows(
    scale: tuple[int, tuple[Defence, ...]], num_rows: int
) -> tuple[int, tuple[Defence, ...]]:
    return (num_rows, scale[1])
