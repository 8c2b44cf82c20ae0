"""A sharded embedding is used as a whole one is, or is refused by name.

The group has one rank, so no process is needed; `tests/slow/ranks` has several.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from celu.config.optimizer import Optimizer as Settings
from celu.engine.optimizer import Optimizer
from celu.errors import ConfigError, ModelError
from celu.ranks.embedding import (
    ShardedEmbedding,
    check_shardable,
    replace_layers,
    shard,
    sparse_tables,
)
from celu.ranks.gradients import take_gradients
from celu.ranks.group import Group
from celu.ranks.own_rows import leaf_of

ROWS, WIDTH = 7, 3


@pytest.fixture
def alone() -> Iterator[Group]:
    """A group of this process only."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Group(store, 0, 1, "0" * 32)
    dist.destroy_process_group()


def table(**options: int) -> nn.Embedding:
    torch.manual_seed(1)
    return nn.Embedding(ROWS, WIDTH, sparse=True, **options)


def gradient(layer: nn.Embedding, *ids: Tensor) -> Tensor:
    loss = torch.stack([(layer(some) * torch.arange(1.0, WIDTH + 1)).sum() for some in ids]).sum()
    loss.backward()
    (found,) = take_gradients([layer.weight])
    assert found is not None
    return found.to_dense()


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}], ids=["plain", "padding"])
def test_embeddings_and_gradients_are_those_of_a_whole_table(
    alone: Group, options: dict[str, int]
) -> None:
    whole = table(**options)
    sharded = shard(alone, whole)
    ids, more = torch.tensor([[1, 5], [1, 2]]), torch.tensor([5, 0])
    assert torch.equal(sharded(ids), whole(ids))
    assert torch.equal(gradient(sharded, ids, more), gradient(whole, ids, more))


def test_a_copy_of_a_model_has_a_table_of_its_own(alone: Group) -> None:
    layer = shard(alone, table())
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.weight.zero_()
    assert bool(layer.weight.any())
    assert leaf_of(copied.weight) is not leaf_of(layer.weight)
    assert not copied(torch.tensor([0, 6])).any()


def test_ids_outside_of_the_table_are_an_index_error(alone: Group) -> None:
    layer = shard(alone, table())
    for ids in ([-1], [0, ROWS]):
        with pytest.raises(IndexError, match="ids of 0 to 6"):
            layer(torch.tensor(ids))


def test_a_model_that_uses_the_weight_itself_is_refused(alone: Group) -> None:
    layer = shard(alone, table())
    nn.functional.embedding(torch.tensor([0]), layer.weight).sum().backward()
    with pytest.raises(ModelError, match="uses the weight of one itself"):
        take_gradients([layer.weight])


def test_all_uses_of_a_layer_are_replaced(alone: Group) -> None:
    layer = table()
    model = nn.ModuleDict({"one": nn.Sequential(layer), "two": layer})
    found = sparse_tables({"bottom": model})
    assert list(found.values()) == [layer]
    replace_layers(model, {layer: shard(alone, layer)})
    assert [type(m) for m in (model["two"], model["one"][0])] == [ShardedEmbedding] * 2  # type: ignore[index]
    assert not sparse_tables({"bottom": model})


def test_tables_that_cannot_be_sharded_are_refused_by_name() -> None:
    first, second = table(), table()
    second.weight = first.weight
    bag = nn.EmbeddingBag(ROWS, WIDTH, sparse=True)
    limited = nn.Embedding(ROWS, WIDTH, sparse=True, max_norm=1.0)
    for layers, why in (([bag], "EmbeddingBag"), ([limited], "max_norm"), ([first, second], "own")):
        with pytest.raises(ModelError, match=rf"model\.shard: bottom\.0: .*{why}"):
            check_shardable({"bottom": nn.Sequential(*layers)}, "bottom.0")


def test_clipping_by_a_norm_is_refused_by_name(alone: Group) -> None:
    layer = shard(alone, table())
    with pytest.raises(ConfigError, match=r"optimizer\.clip_norm: .* sharded"):
        Optimizer([layer], Settings(clip_norm=1.0), "host", 1)
