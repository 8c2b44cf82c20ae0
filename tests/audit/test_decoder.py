"""A decoder finds the columns that Z has, and not those that it has not."""

from __future__ import annotations

import numpy as np

from celu.audit.completion import complete
from celu.audit.decoder import Column, recovered

ROWS = 3000
KNOWN = np.arange(ROWS) % 2 == 0


def test_a_column_in_z_is_recovered_and_an_unrelated_one_is_not() -> None:
    random = np.random.default_rng(1)
    z = random.normal(size=(ROWS, 4)).astype(np.float32)
    columns = [
        Column("seen", "number", 3 * z[:, 0] + 100),
        Column("unrelated", "number", random.normal(size=ROWS)),
        Column("seen category", "category", np.digitize(z[:, 1], [-0.5, 0.5]) * 7),
        Column("unrelated category", "category", random.integers(4, size=ROWS)),
        Column("constant", "category", np.zeros(ROWS)),
        Column("constant number", "number", np.ones(ROWS)),
    ]
    seen, unrelated, category, other, *constant = recovered(z, columns, KNOWN, seed=1)
    assert seen is not None and seen > 0.97
    assert unrelated is not None and unrelated < 0.05
    assert category is not None and category > 0.8
    assert other is not None and other < 0.07
    assert constant == [None, None]


def test_a_head_on_z_finds_more_of_rows_whose_labels_training_put_into_z() -> None:
    random = np.random.default_rng(1)
    labels, unseen = (random.integers(2, size=size).astype(float) for size in (1000, 800))
    z = random.normal(size=(1000, 4)) + 4 * labels[:, None]
    z_unseen = random.normal(size=(800, 4))
    found = complete(z, labels, np.zeros(1000, np.bool_), z_unseen, unseen, 2, random)
    assert found is not None and found.exposed_auc is not None and found.unseen_auc is not None
    assert found.exposed_auc > 0.98
    assert 0.4 < found.unseen_auc < 0.6
    assert found.gap == round(found.exposed_auc - found.unseen_auc, 4)


def test_too_few_rows_have_no_completion() -> None:
    labels = np.arange(100) % 2 * 1.0
    z = np.ones((100, 2))
    assert complete(z, labels, labels < 0, z, labels, 2, np.random.default_rng(1)) is None
