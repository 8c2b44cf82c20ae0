"""Vectors of recurring values: for numbers that act as ids, and for no others."""

from __future__ import annotations

import torch
from torch import Tensor

import celu
from celu.models.recurring_values import RecurringValues
from celu.models.residual import ResidualTop, ResidualTower


def households(rows: int = 600) -> tuple[Tensor, Tensor]:
    """The expenditure of a household, which three rows share, and its place, one of ten."""
    random = torch.Generator().manual_seed(0)
    expenditure = torch.randn(rows // 3, generator=random).repeat(3)
    place = torch.randint(0, 10, (rows // 3,), generator=random).repeat(3)
    return expenditure, place


def recurring(column: Tensor, *others: Tensor, limit: int = 500) -> list[float]:
    """The values of a column that get vectors."""
    module = RecurringValues(1, limit, 2, column[:, None], torch.stack([column, *others], dim=1))
    found: list[float] = module.values[: module.starts[1]].tolist()
    return found


def filled(module: RecurringValues) -> RecurringValues:
    """With a vector of its own for each row of the table."""
    with torch.no_grad():
        module.table.weight[:] = torch.arange(1.0, len(module.table.weight) + 1)[:, None]
    return module


def test_a_number_that_determines_another_column_acts_as_an_id() -> None:
    expenditure, place = households()
    assert recurring(expenditure, place) == sorted(set(expenditure.tolist()))


def test_a_number_is_no_id_where_rows_with_its_value_differ_like_any_others() -> None:
    expenditure, place = households()
    random = torch.Generator().manual_seed(1)
    assert recurring(expenditure, place[torch.randperm(len(place), generator=random)]) == []
    assert recurring(expenditure) == []


def test_a_copy_in_another_unit_and_a_rounded_one_do_not_make_it_an_id() -> None:
    expenditure, _ = households()
    assert recurring(expenditure, expenditure * 100) == []
    assert recurring(expenditure, (expenditure * 2).round()) == []


def test_a_value_that_fills_in_for_missing_numbers_does_not_make_a_column_act_as_ids() -> None:
    random = torch.Generator().manual_seed(2)
    price = torch.randint(1, 701, (20_000,), generator=random).float()
    kind = torch.randint(1, 21, (20_000,), generator=random).float()
    is_missing = torch.rand(20_000, generator=random) < 0.95
    assert recurring(price.masked_fill(is_missing, 0), kind.masked_fill(is_missing, 0)) == []


def test_a_value_in_a_single_row_does_not_recur() -> None:
    expenditure, place = households()
    alone, nowhere = torch.tensor([9.0]), torch.tensor([3])
    assert 9.0 not in recurring(torch.cat([expenditure, alone]), torch.cat([place, nowhere]))


def test_the_values_of_most_rows_get_vectors_where_there_are_too_many() -> None:
    expenditure, place = households()
    often = expenditure[:5].repeat(4)
    column, other = torch.cat([expenditure, often]), torch.cat([place, place[:5].repeat(4)])
    assert recurring(column, other, limit=5) == sorted(expenditure[:5].tolist())


def test_a_value_has_its_vector_in_its_own_column_and_others_have_none() -> None:
    numbers = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
    module = filled(RecurringValues(2, 50, 1))
    module.values[:6] = numbers.T.flatten()
    module.starts.copy_(torch.tensor([0, 3, 6]))
    assert module(numbers).tolist() == [[1, 4], [2, 5], [3, 6]]
    others = torch.tensor([[0.0, 1.0], [4.0, 3.0], [1.5, 7.0], [float("nan"), float("inf")]])
    assert not module(others).any()


def test_vectors_start_at_zero() -> None:
    expenditure, place = households()
    numbers, others = expenditure[:, None], torch.stack([expenditure, place], dim=1)
    module = RecurringValues(1, 500, 4, numbers, others)
    assert not module(numbers).any()
    assert RecurringValues(3, 7, 4)(torch.randn(5, 3)).shape == (5, 12)


def test_a_network_learns_what_households_have_in_common() -> None:
    """Whether a household's people are ill, in rows of others of its people."""
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    expenditure, place = (column.repeat(4) for column in households())
    is_ill = torch.randint(0, 2, (200,), generator=random).repeat(12).float()
    order = torch.randperm(len(is_ill), generator=random)

    def measured(recurring: int) -> float:
        numbers, ids = expenditure[order][:, None], place[order][:, None]
        train, test = slice(0, 1800), slice(1800, None)
        mine = celu.Dataset({"numbers": numbers[train], "ids": ids[train]}, sizes={"ids": (10,)})
        theirs = celu.Dataset({"numbers": numbers[test], "ids": ids[test]}, sizes={"ids": (10,)})
        columns, sizes = {"numbers": 1, "ids": 1}, {"ids": (10,)}
        bottom = ResidualTower(
            8, columns, sizes, mine.examples(), bins=8, width=16, members=1, recurring=recurring
        )
        nothing = torch.zeros(len(order), 1)
        guest = celu.Guest(
            bottom=ResidualTower(8, {"x": 1}, {}, None, width=8, members=1),
            top=ResidualTop([8, 8], width=16, members=1),
            loss="binary",
            train=celu.Dataset({"x": nothing[train]}, is_ill[order][train]),
            test=celu.Dataset({"x": nothing[test]}, is_ill[order][test]),
        )
        host = celu.Host(bottom=bottom, train=mine, test=theirs)
        job = celu.Job(preset="tabular", rounds=150, hosts={"host": celu.HostTerms(z_width=8)})
        return celu.simulate(job, guest, {"host": host}).metrics["auc"]

    assert measured(recurring=500) > 0.95
    assert measured(recurring=0) < 0.9
