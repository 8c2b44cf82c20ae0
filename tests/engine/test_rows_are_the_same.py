"""Shifted, swapped or reshuffled rows are detected before a step is applied."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

import celu
from celu.data.tags import make_tags
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.errors import AlignmentError, ContractMismatch
from federation import ROWS, Federation, assert_same_bits, federation, train_in_memory

Change = Callable[[torch.Tensor], torch.Tensor]


def swap_two(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.clone()
    rows[3], rows[4] = int(rows[4]), int(rows[3])
    return rows


CHANGES: dict[str, Change] = {
    "shift by one": lambda rows: rows.roll(1),
    "two rows swapped": swap_two,
    "reshuffled": lambda rows: rows[torch.randperm(len(rows))],
    "one row twice": lambda rows: torch.cat([rows[:1], rows[:-1]]),
}


def tagged(table: celu.Dataset) -> celu.Dataset:
    return dataclasses.replace(table, tags=make_tags(map(str, range(ROWS)), 1))


def reordered(table: celu.Dataset, change: Change) -> celu.Dataset:
    rows = change(torch.arange(ROWS))
    inputs = {name: tensor[rows] for name, tensor in table.inputs.items()}
    assert table.tags is not None
    return dataclasses.replace(table, inputs=inputs, tags=table.tags[rows.numpy()])


def tagged_federation(**job: object) -> Federation:
    fed = federation(**job)
    guest = dataclasses.replace(
        fed.guest, train=tagged(fed.guest.train), test=tagged(fed.guest.test)
    )
    hosts = {
        name: dataclasses.replace(host, train=tagged(host.train), test=tagged(host.test))
        for name, host in fed.hosts.items()
    }
    return Federation(fed.job, guest, hosts)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("change", CHANGES)
def test_different_rows_are_refused_in_the_handshake(change: str, part: str) -> None:
    fed = tagged_federation()
    host = fed.hosts["host"]
    moved = reordered(getattr(host, part), CHANGES[change])
    fed.hosts["host"] = dataclasses.replace(host, **{part: moved})
    before = fed.weights()
    with pytest.raises(ContractMismatch, match=f"{part}_ids: (guest|host) has"):
        celu.simulate(fed.job, fed.guest, fed.hosts)
    assert_same_bits(fed.weights(), before)


def test_rows_without_ids_do_not_match_rows_with_ids() -> None:
    fed = tagged_federation()
    fed.hosts["host"] = federation().hosts["host"]
    with pytest.raises(ContractMismatch, match="train_ids"):
        celu.simulate(fed.job, fed.guest, fed.hosts)


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_move_after_the_handshake_are_caught_before_a_step(change: str) -> None:
    fed = tagged_federation()
    host = fed.hosts["host"]
    moved = dataclasses.replace(host, train=reordered(host.train, CHANGES[change]))
    job = fed.job.model_copy(update={"batch_size": ROWS})  # every row is in the batch
    there, here = HostTrainer("host", moved, job), GuestTrainer("guest", fed.guest, job)
    before = fed.weights()
    with pytest.raises(AlignmentError, match=r"ACTIVATION of round 0.*not used"):
        here.compute_derivatives(0, [there.compute_activation(0)])
    good = HostTrainer("host", host, job)
    good.compute_activation(0)
    (answer,) = here.compute_derivatives(0, [good.compute_activation(0)])[1]
    with pytest.raises(AlignmentError, match=r"DERIVATIVE of round 0.*not used"):
        there.update(0, answer)
    assert_same_bits(fed.weights(), before)
    assert here.workset.local_steps == there.workset.local_steps == 0


def test_held_out_rows_are_checked_as_well() -> None:
    fed = tagged_federation()
    host = fed.hosts["host"]
    moved = dataclasses.replace(host, test=reordered(host.test, CHANGES["shift by one"]))
    there = HostTrainer("host", moved, fed.job)
    here = GuestTrainer("guest", fed.guest, fed.job)
    with pytest.raises(AlignmentError, match="TEST_ACTIVATION"):
        here.score("test", 0, 32, [there.compute_test_activation("test", 0, 0, 0, 32)])


def test_a_different_batch_order_of_the_same_rows_is_detected() -> None:
    fed = tagged_federation()
    job = fed.job.model_copy(update={"seed": 99})
    there, here = HostTrainer("host", fed.hosts["host"], job), GuestTrainer("g", fed.guest, fed.job)
    with pytest.raises(AlignmentError):
        here.compute_derivatives(0, [there.compute_activation(0)])


@pytest.mark.parametrize("order", ["rows", "blocks"])
def test_tags_do_not_change_the_trained_weights(order: str) -> None:
    blocks = celu.Order(shuffle=order, block_rows=16, window_blocks=4)
    plain, named = federation(order=blocks), tagged_federation(order=blocks)
    assert_same_bits(train_in_memory(plain), train_in_memory(named))


def test_shuffling_by_blocks_gives_other_batches_than_shuffling_rows() -> None:
    blocks = celu.Order(shuffle="blocks", block_rows=16, window_blocks=4)
    a, b = train_in_memory(federation()), train_in_memory(federation(order=blocks))
    assert any(not np.array_equal(a[name].numpy(), b[name].numpy()) for name in a)
    assert_same_bits(b, train_in_memory(copy.deepcopy(federation(order=blocks))))
