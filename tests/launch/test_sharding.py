"""Which tables are sharded: all, none, or those that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import celu
from celu.config.party import PartySettings
from celu.config.reading import validate
from celu.errors import ConfigError, ModelError
from celu.launch import sharding
from celu.launch.loading import load_party
from celu.launch.sharding import Sharding
from celu.models.tower import new_embedding
from celu.ranks.embedding import ShardedEmbedding
from celu.ranks.group import Group
from stores import write_store

ROWS, WIDTH = 100, 4
JOB = celu.Job(seed=1, batch_size=4, rounds=1, guest="guest", hosts={})


@pytest.fixture
def alone() -> Iterator[Group]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Group(store, 0, 1, "0" * 32)
    dist.destroy_process_group()


def of(alone: Group, shard: bool | None) -> Sharding:
    model = {"top": {"use": "wdl"}, "loss": "binary"}
    model |= {} if shard is None else {"shard": shard}
    given = {"role": "guest", "name": "guest", "model": model}
    settings = validate(PartySettings, given, Path("party.toml"))
    return Sharding(alone, settings, JOB, validates=False)


@pytest.mark.parametrize("shard", [True, False])
def test_a_setting_decides_and_the_bits_are_the_same(alone: Group, shard: bool) -> None:
    torch.manual_seed(1)
    expected, following = new_embedding(ROWS, WIDTH, 0.1), torch.rand(2)
    torch.manual_seed(1)
    found = of(alone, shard).new_embedding(ROWS, WIDTH, 0.1)
    assert torch.equal(torch.rand(2), following)
    assert isinstance(found, ShardedEmbedding) == shard
    assert torch.equal(found.weight, expected.weight)


def test_without_a_setting_tables_are_sharded_once_they_do_not_fit(
    alone: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    # AdaGrad: weights and accumulators, each with a copy for checkpoints, in half of the memory.
    one_table = ROWS * WIDTH * 4 * 2 * 2
    monkeypatch.setattr(sharding, "available_bytes", lambda: 2 * (2 * one_table) + 1)
    decides = of(alone, None)
    kinds = [type(decides.new_embedding(ROWS, WIDTH, 0.1)) for _ in range(3)]
    assert kinds == [nn.Embedding, nn.Embedding, ShardedEmbedding]


def test_a_users_tables_are_replaced_and_their_absence_is_refused(alone: Group) -> None:
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH, sparse=True))
    of(alone, True).shard({"bottom": model})
    assert isinstance(model[0], ShardedEmbedding)
    whole = nn.Sequential(nn.Embedding(ROWS, WIDTH, sparse=True))
    of(alone, False).shard({"bottom": whole})
    assert type(whole[0]) is nn.Embedding
    with pytest.raises(ConfigError, match=r"model\.shard: expected a model with embedding tables"):
        of(alone, True).shard({"top": nn.Linear(2, 2)})


def test_a_table_that_cannot_be_sharded_is_whole_unless_it_would_be(
    alone: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    tied = [nn.Embedding(ROWS, WIDTH, sparse=True) for _ in range(2)]
    tied[1].weight = tied[0].weight
    bag = nn.EmbeddingBag(ROWS, WIDTH, sparse=True)
    limited = nn.Embedding(ROWS, WIDTH, sparse=True, max_norm=1.0)
    one_table = ROWS * WIDTH * 4 * 2 * 2
    for layers in ([bag], [limited], tied):
        model = nn.Sequential(*layers)
        monkeypatch.setattr(sharding, "available_bytes", lambda: 2 * one_table)
        of(alone, None).shard({"bottom": model})
        assert list(model) == layers
        with pytest.raises(ModelError, match=r"model\.shard: bottom\.0: expected"):
            of(alone, True).shard({"bottom": model})
        monkeypatch.setattr(sharding, "available_bytes", lambda: 2 * one_table - 1)
        with pytest.raises(ModelError, match=r"model\.shard: bottom\.0: expected"):
            of(alone, None).shard({"bottom": model})


def test_a_party_that_starts_over_builds_the_same_tables(
    alone: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_table = ROWS * WIDTH * 4 * 2 * 2
    monkeypatch.setattr(sharding, "available_bytes", lambda: 2 * (4 * one_table))
    rng = np.random.default_rng(1)
    write_store(tmp_path / "store", {"c": rng.integers(0, ROWS, 8)}, {"c": ROWS - 1})
    given = {
        "role": "host",
        "name": "host",
        "data": {"store": tmp_path / "store", "aligned": True},
        "model": {"bottom": {"use": "wdl", "embedding_dim": WIDTH - 1, "hidden": [2]}},
        "peers": {"guest": {"connect": "localhost:1"}},
        "insecure": True,
    }
    settings = validate(PartySettings, given, Path("party.toml"))
    job = JOB.model_copy(update={"hosts": {"host": celu.HostTerms(z_width=2)}})
    decides = Sharding(alone, settings, job, validates=False)
    for _ in range(10):  # as after each restart of a peer
        party = load_party(settings, job, tmp_path, sharding=decides)
        assert not any(isinstance(m, ShardedEmbedding) for m in party.bottom.modules())
