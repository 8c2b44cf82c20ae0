"""The measured gradients are the engine's, and measuring does not change the training."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import celu
from bench.paper import theory
from bench.paper.gradients import (
    cosine,
    guest_gradient,
    host_gradient,
    joint_gradients,
    no_weights,
    prediction_bias,
)
from bench.paper.stale_gradients import FILL, _Moments, lockstep
from celu.data.dataset import Batch
from celu.workset.sampling import RoundRobin
from celu.workset.table import Entry, WorksetTable
from federation import Federation, federation, train_in_memory

METHOD = celu.Method(W=3, R=4, xi=60)
SGD = celu.Optimizer(name="sgd", lr=0.5)


def small(**job: object) -> Federation:
    return federation(method=METHOD, **job)


def flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


def test_rounds_in_lockstep_equal_those_of_the_engine() -> None:
    fed = small(rounds=9)
    expected = train_in_memory(fed)
    with lockstep(fed.guest, fed.hosts["host"], fed.job) as both:
        for round_ in range(9):
            both.round(round_)
    weights = fed.weights()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_a_stale_gradient_is_the_one_that_a_local_step_applies() -> None:
    fed = small(optimizer=SGD)
    guest, host = fed.guest, fed.hosts["host"]
    assert guest.bottom is not None
    with lockstep(guest, host, fed.job) as both:
        for round_ in range(6):
            both.round(round_)
        own = {
            "guest": [*guest.bottom.parameters(), *guest.top.parameters()],
            "host": list(host.bottom.parameters()),
        }
        for party, trainer in (("guest", both.guest), ("host", both.host)):
            table, before = trainer.workset.table.state(), flat(own[party])
            entry = trainer.workset.sample()
            assert entry is not None
            weigh = trainer.workset.weigh
            expected = (
                guest_gradient(guest, entry, weigh)
                if party == "guest"
                else host_gradient(host.bottom, entry, weigh)
            )
            trainer.workset.table.restore(table)
            trainer.local_step()
            assert expected.norm() > 0
            torch.testing.assert_close((before - flat(own[party])) / SGD.lr, expected)


def test_the_gradients_of_a_batch_just_exchanged_are_the_true_ones() -> None:
    # The update is not applied yet, so the weights are still those that computed Z.
    fed = small()
    guest, host = fed.guest, fed.hosts["host"]
    with lockstep(guest, host, fed.job) as both:
        both.round(0)
        _, (dz,) = both.guest.compute_derivatives(1, [both.host.compute_activation(1)])
        (entry,) = [e for e in both.guest.workset.table if e.round == 1]
        batches = {"guest": entry, "host": Entry(1, both.host.loader.batch(1), (), ())}
        true, _ = joint_gradients(guest, host, batches)
        stale = guest_gradient(guest, entry, no_weights)
        torch.testing.assert_close(stale, true["guest"])
        assert dz.tensor is not None
        entry_at_host = Entry(1, both.host.loader.batch(1), entry.z, (dz.tensor,))
        stale = host_gradient(host.bottom, entry_at_host, both.host.workset.weigh)
        torch.testing.assert_close(stale, true["host"])


def test_measuring_does_not_change_the_training() -> None:
    fed = small()
    undisturbed = copy.deepcopy(fed)
    for federation_, measures in ((fed, True), (undisturbed, False)):
        with lockstep(federation_.guest, federation_.hosts["host"], federation_.job) as both:
            for round_ in range(8):
                if measures and round_ == 5:
                    both.measure(5, W=2, R=3, replicas=2)
                both.round(round_)
    weights = fed.weights()
    assert all(torch.equal(weights[n], tensor) for n, tensor in undisturbed.weights().items())


def test_a_measurement_has_variances_and_cosines_of_both_parties() -> None:
    fed = small()
    with lockstep(fed.guest, fed.hosts["host"], fed.job) as both:
        both.round(0)
        found = both.measure(1, W=1, R=4, replicas=3)
    for party in ("guest", "host"):
        # With W=1 all local steps of a round use one batch, so their mean equals each of them.
        assert found[party]["round_variance"] == pytest.approx(found[party]["step_variance"])
        assert -1 <= found[party]["least_cosine"] <= found[party]["cosine"] <= 1


def test_the_prediction_bias_is_mean_probability_minus_share_of_clicks() -> None:
    fed = small()
    batch = fed.guest.train.take(slice(0, 40))
    assert batch.labels is not None
    output_B = torch.linspace(-2, 3, 40)
    expected = torch.sigmoid(output_B).mean() - batch.labels.mean()
    torch.testing.assert_close(prediction_bias(fed.guest, output_B, batch), expected)


@pytest.mark.parametrize(("lr", "turns"), [(1e-9, False), (2.0, True)])
def test_local_steps_whose_bias_changed_its_sign_are_counted_separately(
    lr: float, turns: bool
) -> None:
    fed = small(optimizer=celu.Optimizer(name="sgd", lr=lr))
    with lockstep(fed.guest, fed.hosts["host"], fed.job) as both:
        found = both.measure(0, W=3, R=4, replicas=4)
    for party in ("guest", "host"):
        of = found[party]
        if not turns:
            assert (of["turned"], of["cosine_turned"]) == (0, None)
            assert of["cosine"] == of["cosine_not_turned"] > 0.999
        else:
            parts = of["turned"] * of["cosine_turned"], (1 - of["turned"]) * of["cosine_not_turned"]
            assert 0 < of["turned"] < 1
            assert sum(parts) == pytest.approx(of["cosine"])


def test_a_measurement_does_not_depend_on_earlier_ones() -> None:
    fed = small()
    with lockstep(fed.guest, fed.hosts["host"], fed.job) as both:
        for round_ in range(5):
            both.round(round_)
        first, other, again = (both.measure(5, W, 3, replicas=2) for W in (2, 4, 2))
    assert again == first != other


@pytest.mark.parametrize("R", theory.RS)
@pytest.mark.parametrize("W", theory.WS)
def test_after_filling_a_workset_is_used_as_in_the_long_run(W: int, R: int) -> None:
    def ages(rounds: int) -> list[int]:
        """The ages, in updates, of the entries that the local steps after these rounds use."""
        table, sampling = WorksetTable(W, R), RoundRobin()
        batch = Batch({}, None, np.zeros((0, 16), np.uint8))
        updates, inserted = 0, {}
        for round_ in range(rounds):
            updates += sum(table.sample(sampling) is not None for _ in range(R - 1))
            table.insert(Entry(round_, batch, (), ()))
            inserted[round_] = updates
            updates += 1
        drawn = [table.sample(sampling) for _ in range(R - 1)]
        return [updates - inserted[entry.round] for entry in drawn if entry is not None]

    assert len(ages(FILL)) == R - 1
    assert ages(FILL) == ages(10 * FILL)


def test_the_variance_is_computed_around_the_mean() -> None:
    moments = _Moments()
    for vector in ([1.0, 0.0], [3.0, 0.0], [2.0, 3.0]):
        moments.add(torch.tensor(vector))
    # Around (2, 1): 2 + 2 + 4, over 3 - 1.
    assert moments.variance() == pytest.approx(4.0)


def test_the_cosine_with_a_zero_gradient_is_zero() -> None:
    assert cosine(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0])) == pytest.approx(1.0)
    assert cosine(torch.zeros(2), torch.ones(2)) == 0.0
