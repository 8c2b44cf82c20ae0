"""Each experiment changes the engine as its name says, and only while it is open."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

import celu
from bench.paper.experiments import EXPERIMENTS
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.engine.optimizer import flatten_state
from federation import Federation, assert_same_bits, federation, train_in_memory

METHOD = celu.Method(W=3, R=3, depth=2)
Change = Callable[[], AbstractContextManager[None]]


def experiment(words: str) -> Change:
    (name,) = (name for name in EXPERIMENTS if words in name)
    return EXPERIMENTS[name]


def after_one_exchange(fed: Federation) -> tuple[HostTrainer, GuestTrainer]:
    """Trainers that have exchanged one batch and made no local step."""
    host = HostTrainer("host", fed.hosts["host"], fed.job)
    guest = GuestTrainer("guest", fed.guest, fed.job)
    _, (derivative,) = guest.compute_derivatives(0, [host.compute_activation(0)])
    guest.apply_update()
    host.update(0, derivative)
    return host, guest


def changes_of_a_local_step(fed: Federation, change: Change) -> dict[str, Tensor]:
    """By how much one local step of each party changes each tensor, within an experiment."""
    fed = copy.deepcopy(fed)
    trainers = after_one_exchange(fed)
    before = fed.weights()
    with change():
        for trainer in trainers:
            trainer.local_step()
    return {name: after - before[name] for name, after in fed.weights().items()}


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name])
def test_an_experiment_changes_the_run_and_leaves_nothing_behind(name: str) -> None:
    fed = federation(method=METHOD)
    before = train_in_memory(fed)
    with EXPERIMENTS[name]():
        changed = train_in_memory(fed)
    assert any(not torch.equal(changed[key], before[key]) for key in before)
    with EXPERIMENTS[""]():
        assert_same_bits(train_in_memory(fed), before)


def test_cached_updates_can_leave_the_accumulator_as_it_is() -> None:
    frozen = experiment("accumulator")
    fed = federation(method=METHOD)
    assert_same_bits(
        changes_of_a_local_step(fed, frozen), changes_of_a_local_step(fed, EXPERIMENTS[""])
    )
    for change, is_frozen in ((frozen, True), (EXPERIMENTS[""], False)):
        for trainer in after_one_exchange(copy.deepcopy(fed)):
            before = flatten_state(trainer._optimizer.state())
            with change():
                trainer.local_step()
            after = flatten_state(trainer._optimizer.state())
            assert after.keys() == before.keys() and len(after) > 0
            pairs = [(torch.as_tensor(after[key]), torch.as_tensor(before[key])) for key in after]
            assert all(torch.equal(a, b) for a, b in pairs) is is_frozen


def test_cached_updates_can_have_half_the_rate() -> None:
    fed = federation(method=METHOD, optimizer=celu.Optimizer(name="sgd", lr=0.5))
    whole = changes_of_a_local_step(fed, EXPERIMENTS[""])
    half = changes_of_a_local_step(fed, experiment("half the rate"))
    assert all(bool(change.any()) for change in whole.values())
    for name, change in whole.items():
        torch.testing.assert_close(half[name], change / 2, rtol=1e-3, atol=1e-6)


def test_the_guest_can_predict_how_z_moved() -> None:
    fed = federation(method=METHOD)
    expected = copy.deepcopy(fed)
    host, guest = after_one_exchange(expected)
    (sent,), (received,) = host.workset.table, guest.workset.table
    gradient_BD = 32 * sent.dz[0]
    fresh_BD = expected.hosts["host"].bottom(**sent.batch.inputs).detach()
    moved_BD = fresh_BD - sent.z[0]
    gain = -float((moved_BD * gradient_BD).sum() / gradient_BD.square().sum())
    assert gain > 0  # Z moves against its gradient
    received.z = (received.z[0] - gain * 32 * received.dz[0],)
    guest.local_step()

    trainers = after_one_exchange(fed)
    with experiment("predicts")():
        for trainer in trainers:
            trainer.local_step()
    for name in ("top", "bottom"):
        ours, theirs = fed.modules()[name], expected.modules()[name]
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b)


def test_the_guest_can_send_the_curvature_of_a_batch_of_a_log_loss() -> None:
    fed = federation(method=METHOD)
    host = HostTrainer("host", fed.hosts["host"], fed.job)
    guest = GuestTrainer("guest", fed.guest, fed.job)
    activation = host.compute_activation(0)
    with experiment("curvature")():
        _, (derivative,) = guest.compute_derivatives(0, [activation])
    assert guest.latest is not None and guest.latest[1].labels is not None
    estimated = celu.Loss(fed.guest.loss.per_instance)
    assert derivative.curvature == estimated.curvature(guest.latest[0], guest.latest[1].labels) != 1
    assert guest.compute_derivatives(0, [activation])[1][0].curvature == 1
