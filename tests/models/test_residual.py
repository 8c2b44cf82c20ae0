"""Residual networks for tables: embeddings of numbers, rows apart from each other, interactions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import celu
from celu.errors import ModelError
from celu.models.built_in import BOTTOMS
from celu.models.members import num_members
from celu.models.number_embedding import NumberEmbedding
from celu.models.residual import CrossLayer, ResidualTop, ResidualTower

SIZES = {"ids": (3, 5)}


def embedding(examples: Tensor, bins: int, dim: int = 1) -> NumberEmbedding:
    torch.manual_seed(0)
    return NumberEmbedding(examples.shape[1], bins, dim, examples)


def shares(module: NumberEmbedding, value: float) -> list[float]:
    """How much of each bin lies below a value, in a module with one column and one weight."""
    found = []
    for bin_ in range(module.weight.shape[1]):
        with torch.no_grad():
            module.weight.zero_()
            module.bias.zero_()
            module.weight[0, bin_] = 1.0
            found.append(float(module(torch.tensor([[value]]))))
    return found


def tower(columns: dict[str, int], **options: Any) -> ResidualTower:
    torch.manual_seed(0)
    rows = {name: tensor for name, tensor in inputs(50).items() if name in columns}
    sizes = {name: sizes for name, sizes in SIZES.items() if name in columns}
    return ResidualTower(
        6, columns, sizes, rows, **{"width": 16, "bins": 4, "members": 2, **options}
    )


def inputs(rows: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, size, (rows,), generator=random) for size in SIZES["ids"]]
    return {"ids": torch.stack(ids, dim=1), "numbers": torch.randn(rows, 4, generator=random)}


def test_a_number_fills_the_bins_below_it() -> None:
    module = embedding(torch.tensor([[0.0], [1.0], [3.0], [7.0], [15.0]]), bins=4)
    assert module.edges.tolist() == [[0, 1, 3, 7, 15]]
    assert shares(module, 2.0) == [1, 0.5, 0, 0]
    assert shares(module, 9.0) == [1, 1, 1, 0.25]
    assert shares(module, -5.0) == [0, 0, 0, 0]
    assert shares(module, 1e30) == [1, 1, 1, 1]


def test_bins_between_equal_quantiles_are_steps() -> None:
    module = embedding(torch.tensor([[0.0], [0.0], [0.0], [1.0]]), bins=3)
    assert module.edges.tolist() == [[0, 0, 0, 1]]
    assert shares(module, -0.1) == [0, 0, 0]
    assert shares(module, 0.0) == [1, 1, 0]
    assert shares(module, 0.5) == [1, 1, 0.5]


def test_an_embedding_starts_as_a_linear_function_of_the_rank() -> None:
    examples = torch.rand(999, 1).exp().sort(dim=0).values
    found = embedding(examples, bins=8, dim=2)(examples).detach()
    ranks = torch.linspace(-1, 1, len(examples))
    ends = found[-1]
    torch.testing.assert_close(found[0], -ends)
    torch.testing.assert_close(
        found[:, 0], ranks * ends[0], rtol=0, atol=0.1 * float(ends[0].abs())
    )


def test_a_value_can_change_without_those_beyond_its_bins() -> None:
    module = embedding(torch.arange(6.0).reshape(-1, 1), bins=5)
    before = module(torch.arange(6.0).reshape(-1, 1)).detach()
    optimizer = torch.optim.SGD([module.offsets], lr=1.0)
    module(torch.tensor([[3.0]])).sum().backward()
    optimizer.step()
    changed = module(torch.arange(6.0).reshape(-1, 1)).detach() != before
    assert changed.flatten().tolist() == [False, False, False, True, False, False]


def test_the_unit_of_a_number_does_not_matter() -> None:
    metres = torch.randn(200, 2)
    ours, theirs = embedding(metres, 8, 3)(metres), embedding(metres * 1000 + 5, 8, 3)
    torch.testing.assert_close(theirs(metres * 1000 + 5), ours, rtol=0, atol=1e-3)


@pytest.mark.parametrize("columns", [{"ids": 2, "numbers": 4}, {"ids": 2}, {"numbers": 4}], ids=str)
def test_a_tower_takes_ids_numbers_or_both(columns: dict[str, int]) -> None:
    rows = {name: tensor for name, tensor in inputs(7).items() if name in columns}
    assert tower(columns)(**rows).shape == (7, 6)


@pytest.mark.parametrize(("pooling", "factor"), [("mean", 1.0), ("sum", 2.0)])
def test_a_bag_is_the_mean_or_the_sum_of_its_embeddings(pooling: Any, factor: float) -> None:
    torch.manual_seed(0)
    module = ResidualTower(6, {"tags": 1}, {"tags": (9,)}, members=1, width=16, pooling=pooling)
    module.eval()
    embed = module.embeddings["tags"]
    one, twice = torch.tensor([[[4, 0, 0]]]), torch.tensor([[[4, 4, 0]]])
    torch.testing.assert_close(embed(twice), embed(one) * factor)
    assert module(tags=twice).shape == (1, 6)


def test_a_row_does_not_depend_on_the_others_of_its_batch() -> None:
    module, rows = tower({"ids": 2, "numbers": 4}, blocks=2, dropout=0.0), inputs(9)
    assert module.training
    alone = module(**{name: tensor[3:4] for name, tensor in rows.items()})
    torch.testing.assert_close(module(**rows)[3:4], alone)


def test_the_edges_of_bins_are_weights_that_a_loaded_model_has() -> None:
    trained = tower({"numbers": 4})
    loaded = ResidualTower(6, {"numbers": 4}, {}, None, width=16, bins=4, members=2)
    loaded.load_state_dict(trained.state_dict())
    trained.eval()
    loaded.eval()
    rows = {"numbers": inputs(5)["numbers"]}
    assert torch.equal(loaded(**rows), trained(**rows))


def test_dropout_is_off_unless_it_is_asked_for() -> None:
    rows = inputs(9)
    plain, dropping = (tower({"ids": 2, "numbers": 4}, dropout=share) for share in (0.0, 0.5))
    assert torch.equal(plain(**rows), plain(**rows))
    assert not torch.equal(dropping(**rows), dropping(**rows))
    dropping.eval()
    assert torch.equal(dropping(**rows), dropping(**rows))
    assert BOTTOMS["resnet"].default_values["dropout"] == 0.0


def test_columns_multiply_in_a_cross_layer() -> None:
    layer, x = CrossLayer(2), torch.tensor([[2.0, 3.0], [5.0, 7.0]])
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        layer.linear.bias.copy_(torch.tensor([0.0, 4.0]))
    assert layer(x).tolist() == [[2 * 3 + 2, 3 * 4 + 3], [5 * 7 + 5, 7 * 4 + 7]]


def test_a_cross_layer_starts_like_other_layers() -> None:
    torch.manual_seed(0)
    layer = CrossLayer(4)
    torch.manual_seed(0)
    usual = torch.nn.Linear(4, 4)
    assert torch.equal(layer.linear.weight, usual.weight)
    assert torch.equal(layer.linear.bias, usual.bias)


def test_a_tower_has_a_cross_layer_unless_it_is_turned_off() -> None:
    names = [name for name in tower({"numbers": 4}).state_dict() if name.startswith("cross")]
    assert names == ["cross.linear.weight", "cross.linear.bias"]
    without = tower({"numbers": 4}, cross=False)
    assert not [name for name in without.state_dict() if name.startswith("cross")]


def products(*values: list[float]) -> list[float]:
    """What a top with identical projections computes besides Z, from the Z of each party."""
    top = ResidualTop([2] * len(values), members=1, width=2, blocks=0)
    with torch.no_grad():
        for projection in top.projections:
            projection.weight.copy_(torch.eye(2))
            projection.bias.zero_()
    seen: list[Tensor] = []
    top.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    top(*(torch.tensor([z], dtype=torch.float32) for z in values))
    found: list[float] = seen[0][0, 0, 2 * len(values) :].tolist()
    return found


def test_a_top_sees_the_products_of_all_pairs_of_parties() -> None:
    assert products([2, 3], [5, 7]) == [10, 21]
    assert products([1, 2], [3, 4], [5, 6]) == [1 * 3 + 1 * 5 + 3 * 5, 2 * 4 + 2 * 6 + 4 * 6]
    assert products([2, 3]) == [0, 0]  # one party: nothing interacts


def interacting(rows: int, seed: int) -> tuple[celu.Dataset, celu.Dataset]:
    """A label that neither party's number says anything about: whether their signs are equal."""
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))
    labels = (x.prod(dim=1) > 0).float()
    return celu.Dataset({"numbers": x[:, :1]}, labels), celu.Dataset({"numbers": x[:, 1:]})


def test_a_federated_run_learns_what_only_both_parties_together_know() -> None:
    torch.manual_seed(0)
    (guest_train, host_train), (guest_test, host_test) = interacting(2048, 1), interacting(512, 2)

    def bottom(train: celu.Dataset) -> ResidualTower:
        return ResidualTower(8, {"numbers": 1}, {}, train.examples(), width=16, bins=8)

    guest = celu.Guest(
        bottom=bottom(guest_train),
        top=ResidualTop([8, 8], width=16),
        loss="binary",
        train=guest_train,
        test=guest_test,
    )
    host = celu.Host(bottom=bottom(host_train), train=host_train, test=host_test)
    job = celu.Job(preset="tabular", rounds=150, batch_size=256, hosts={"host": 8})
    assert celu.simulate(job, guest, {"host": host}).metrics["auc"] > 0.95


def test_members_have_their_own_parts_of_z_and_start_apart() -> None:
    module = tower({"numbers": 4}, members=3, dropout=0.0)
    rows = {"numbers": inputs(5)["numbers"]}
    with torch.no_grad():
        before = module(**rows).reshape(5, 3, 2)
        module.signs[1] *= -1
        changed = (module(**rows).reshape(5, 3, 2) != before).any(dim=2).any(dim=0)
    assert changed.tolist() == [False, True, False]
    assert len({tuple(part.flatten().tolist()) for part in before.unbind(dim=1)}) == 3


def test_a_top_returns_its_members_in_training_and_their_mean_otherwise() -> None:
    torch.manual_seed(0)
    top, zs = ResidualTop([6, 12], outputs=2, members=3, dropout=0.0), (torch.randn(5, 6),) * 2
    zs = (zs[0], torch.randn(5, 12))
    assert num_members(top) == 3
    each = top(*zs)
    assert each.shape == (5, 3, 2)
    assert torch.equal(top.eval()(*zs), each.mean(dim=1))


def test_a_member_of_a_top_sees_its_parts_of_z_only() -> None:
    torch.manual_seed(0)
    top = ResidualTop([6, 6], members=3, dropout=0.0)
    zs = [torch.randn(5, 6, requires_grad=True) for _ in range(2)]
    top(*zs)[:, 1].sum().backward()
    for z in zs:
        assert z.grad is not None
        assert (z.grad != 0).any(dim=0).tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize("build", [lambda: tower({"ids": 2}, members=4), lambda: ResidualTop([6])])
def test_a_width_of_z_that_members_do_not_divide_is_refused(build: Any) -> None:
    with pytest.raises(ModelError, match=r"multiple of its \d members, got 6; change z_width"):
        build()
