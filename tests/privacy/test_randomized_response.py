"""Randomized labels: how many change, that they stay as they are, and unbiased losses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import celu
from celu.data.tags import make_tags
from celu.models.losses import LOSSES, Loss
from celu.privacy.randomized_response import RandomizedResponse
from celu.privacy.secret_key import SecretKey

KEY = SecretKey(b"k" * 32)
ROWS = 20_000


def rows(labels: Tensor, with_tags: bool = True) -> celu.Dataset:
    tags = make_tags((str(i) for i in range(len(labels))), 1) if with_tags else None
    return celu.Dataset({}, labels, tags=tags)


def randomized(
    labels: Tensor,
    *,
    epsilon: float = 1.0,
    classes: int = 2,
    part: str = "train",
    with_tags: bool = True,
    key: SecretKey = KEY,
    digest: str = "digest",
) -> Tensor:
    response = RandomizedResponse(epsilon, classes)
    return response.randomize(rows(labels, with_tags), part, labels, key, digest)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_ratio_of_the_probabilities_is_e_to_the_epsilon(classes: int) -> None:
    response = RandomizedResponse(1.5, classes)
    assert response.keep + (classes - 1) * response.other == pytest.approx(1)
    assert response.keep / response.other == pytest.approx(math.exp(1.5))


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("epsilon", [0.41, 1.0, 3.0])
def test_as_many_labels_change_as_expected_and_to_all_classes_alike(
    classes: int, epsilon: float
) -> None:
    labels = torch.zeros(ROWS)
    found = randomized(labels, epsilon=epsilon, classes=classes)
    counts = torch.bincount(found.long(), minlength=classes) / ROWS
    response = RandomizedResponse(epsilon, classes)
    expected = torch.tensor([response.keep] + [response.other] * (classes - 1))
    assert torch.allclose(counts, expected.float(), atol=4 * 0.5 / math.sqrt(ROWS))


def test_a_row_has_the_same_randomized_label_whatever_rows_are_around_it() -> None:
    labels = torch.arange(100).float() % 2
    whole = rows(labels)
    assert whole.tags is not None
    response = RandomizedResponse(1.0, 2)
    expected = response.randomize(whole, "train", labels, KEY, "digest")
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    shuffled = celu.Dataset({}, labels[order], tags=whole.tags[order.numpy()])
    found = response.randomize(shuffled, "test", labels[order], KEY, "digest")
    assert torch.equal(found, expected[order])


def test_whether_a_label_changes_does_not_depend_on_the_label() -> None:
    zeros, ones = torch.zeros(500), torch.ones(500)
    assert torch.equal(randomized(zeros) == 0, randomized(ones) == 1)


@pytest.mark.parametrize(
    "other",
    [
        {"key": SecretKey(b"other key" * 3)},
        # With the same choices, a row whose two labels differ would reveal the true one.
        {"epsilon": 1.1},
        {"classes": 3},
        {"digest": "of other labels"},
    ],
    ids=["key", "epsilon", "classes", "labels"],
)
def test_another_key_epsilon_or_other_labels_change_other_rows(other: dict[str, int]) -> None:
    labels = torch.zeros(ROWS)
    changed = (randomized(labels) != 0).double()
    others = (randomized(labels, **other) != 0).double()  # type: ignore[arg-type]
    assert abs(float(torch.corrcoef(torch.stack([changed, others]))[0, 1])) < 0.04


def test_row_numbers_of_two_parts_are_different_rows() -> None:
    labels = torch.zeros(ROWS)
    train, test = (randomized(labels, part=p, with_tags=False) for p in ("train", "test"))
    assert abs(float(torch.corrcoef(torch.stack([train, test]))[0, 1])) < 0.04


def squared(output: Tensor, labels: Tensor) -> Tensor:
    return (output.reshape(-1).sigmoid() - labels).square()


LOSSES_OF_CLASSES: dict[str, tuple[Loss, int]] = {
    "binary": (LOSSES["binary"], 2),
    "multiclass": (LOSSES["multiclass"], 3),
    "own": (Loss(squared, output="binary", labels="binary"), 2),
}


@pytest.mark.parametrize("case", LOSSES_OF_CLASSES)
def test_the_mean_of_the_unbiased_loss_is_that_of_the_true_label(case: str) -> None:
    loss, classes = LOSSES_OF_CLASSES[case]
    response = RandomizedResponse(0.7, classes)
    unbiased = response.unbiased(loss)
    random = torch.Generator().manual_seed(1)
    shape = (6, classes) if case == "multiclass" else (6, 1)
    output = torch.randn(shape, generator=random, dtype=torch.float64)
    true = torch.arange(6) % classes
    mean = torch.zeros(6, dtype=torch.float64)
    for label in range(classes):
        given = torch.full((6,), label)
        p = torch.where(given == true, response.keep, response.other)
        mean += p * unbiased.per_instance(output, given.to(true.dtype))
    assert torch.allclose(mean, loss.per_instance(output, true.double()))


def test_the_loss_of_two_classes_is_the_known_formula() -> None:
    response, output = RandomizedResponse(1.0, 2), torch.tensor([[0.3], [-2.0]])
    labels = torch.tensor([1.0, 0.0])
    own, other = (LOSSES["binary"].per_instance(output, y) for y in (labels, 1 - labels))
    q = 1 / (1 + math.e)
    expected = ((1 - q) * own - q * other) / (1 - 2 * q)
    assert torch.allclose(
        response.unbiased(LOSSES["binary"]).per_instance(output, labels), expected
    )


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_curvature_is_that_of_the_unbiased_loss(kind: str) -> None:
    classes = 2 if kind == "binary" else 3
    unbiased = RandomizedResponse(1.0, classes).unbiased(LOSSES[kind])
    random = torch.Generator().manual_seed(1)
    shape = (8, 1) if kind == "binary" else (8, 3)
    output = torch.randn(shape, generator=random, dtype=torch.float64)
    labels = torch.arange(8) % classes
    by_autograd = Loss(unbiased.per_instance).curvature(output, labels)
    assert unbiased.curvature(output, labels) == pytest.approx(by_autograd)
    assert unbiased.curvature(output, labels) < 1  # that of the log loss of true labels
