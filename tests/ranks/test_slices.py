"""One process that computes every batch in slices."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import celu
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.errors import ModelError
from celu.ranks.slices import ONE, Slices
from federation import BATCH, Federation, federation

METHOD = celu.Method(W=3, R=3)


def train(slices: Slices, fed: Federation, rounds: int = 4) -> dict[str, Tensor]:
    """Exchange rounds with local steps, without a link; returns all weights."""
    host = HostTrainer("host", fed.hosts["host"], fed.job, ranks=slices)
    guest = GuestTrainer("guest", fed.guest, fed.job, ranks=slices)
    for round_ in range(rounds):
        _, derivatives = guest.compute_derivatives(round_, [host.compute_activation(round_)])
        guest.apply_update()
        host.update(round_, derivatives[0])
        guest.local_step()
        host.local_step()
    return fed.weights()


@pytest.mark.parametrize("rows", [1, 2, 5, 32])
def test_every_row_is_in_one_slice_and_the_first_is_never_smaller(rows: int) -> None:
    slices = Slices(3)
    bounds = slices.bounds(rows)
    sizes = [stop - start for start, stop in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, rows)
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == max(sizes)
    assert [s.stop - s.start for s in slices.each(rows)] == [size for size in sizes if size]


@pytest.mark.parametrize("weighting", ["compensated", "cosine", "none"])
def test_slices_train_as_whole_batches_do_but_for_rounding(weighting: str) -> None:
    method = METHOD.model_copy(update={"weighting": weighting})
    whole = train(ONE, federation(method=method))
    in_slices = train(Slices(3), federation(method=method))
    for name, weights in whole.items():
        torch.testing.assert_close(in_slices[name], weights, rtol=1e-4, atol=1e-6)


def test_slices_draw_other_random_numbers() -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return torch.rand(len(x), 6) * self.scale

    rows = celu.Dataset({"x": torch.zeros(BATCH, 1)})
    fed = federation(hosts={"host": 6})
    host = HostTrainer(
        "host", celu.Host(bottom=Noise(), train=rows, test=rows), fed.job, ranks=Slices(2)
    )
    z_BD = host.compute_activation(0).tensor
    assert z_BD is not None
    assert not torch.equal(z_BD[: BATCH // 2], z_BD[BATCH // 2 :])


def test_a_forward_pass_that_changes_a_buffer_is_refused_by_name() -> None:
    fed = federation()
    normed = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, fed.job.hosts["host"].z_width))

    class Bottom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = normed

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.layers(x)
            return z

    rows = celu.Dataset({"x": torch.randn(BATCH, 1)})
    host = celu.Host(bottom=Bottom(), train=rows, test=rows)
    HostTrainer("host", host, fed.job).compute_activation(0)
    with pytest.raises(ModelError, match=r"host: .* buffer bottom\.layers\.0\."):
        HostTrainer("host", host, fed.job, ranks=Slices(2)).compute_activation(0)
