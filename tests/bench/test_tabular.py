"""`scripts/bench tabular`: no label leaks, choices see validation rows only, and its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import celu
from bench import tabular
from bench.pooled import Scored, auc, train_lightgbm, train_pooled
from bench.tables import TABLES, Rows, Table, TabularSet, check_sources, load_set
from celu.errors import ConfigError, DataError

LABELS_FROM = {"diamonds": "cut", "movies": "rating", "vietnam": "pharvis"}


def synthetic(rows: int = 1200, held_out: int = 900, first_test: int = 300) -> TabularSet:
    """A label that depends on both parties' numbers and on an id of the host."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows + held_out, 2, generator=random)
    ids = torch.randint(0, 4, (rows + held_out, 1), generator=random)
    labels = (x.sum(dim=1) + (ids[:, 0] % 2) > 0.5).float()

    def dataset(part: slice, party: int) -> celu.Dataset:
        numbers = {"numbers": x[part, party : party + 1]}
        if party == 0:
            return celu.Dataset(numbers, labels[part])
        return celu.Dataset({**numbers, "ids": ids[part]}, sizes={"ids": (4,)})

    guest, host = (
        Rows(dataset(slice(0, rows), party), dataset(slice(rows, None), party)) for party in (0, 1)
    )
    return TabularSet("synthetic", guest, host, first_test)


@pytest.mark.parametrize(("name", "table"), TABLES.items())
def test_no_party_has_the_column_that_the_label_is_made_of(name: str, table: Table) -> None:
    assert LABELS_FROM[name] not in {*table.guest, *table.host}
    assert not table.guest.keys() & table.host.keys()


def test_a_table_is_split_between_two_parties_with_the_same_rows(tmp_path: Path) -> None:
    table = load_set("vietnam", None, tmp_path)
    assert table.guest.train.num_rows + table.guest.held_out.num_rows == 27_765
    assert table.guest.train.commitment == table.host.train.commitment
    assert table.host.held_out.labels is None and set(table.held_out_labels) == {0, 1}
    assert table.guest.held_out.num_rows / 27_765 == pytest.approx(0.3, abs=0.01)


def test_without_its_folder_criteo_is_left_out_and_a_wrong_folder_is_an_error(
    tmp_path: Path,
) -> None:
    assert check_sources(None) == ["flights", "diamonds", "movies", "vietnam"]
    with pytest.raises(DataError, match=r"criteo_random\.tsv\.gz does not exist"):
        check_sources(tmp_path)


def test_single_tables_are_measured_on_request() -> None:
    assert check_sources(None, ["flights"]) == ["flights"]
    assert check_sources(None, ["movies", "diamonds"]) == ["diamonds", "movies"]
    with pytest.raises(ConfigError, match="--only criteo: expected --data with it"):
        check_sources(None, ["criteo"])
    with pytest.raises(ConfigError, match=r"--only iris: expected one of flights, criteo, dia"):
        check_sources(None, ["iris"])


def test_the_model_with_the_best_validation_auc_counts_whatever_its_test_auc() -> None:
    assert max(Scored(0.7, 0.9), Scored(0.8, 0.1)) == Scored(0.8, 0.1)


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    scores, labels = np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1])
    assert auc(scores, labels) == 3.5 / 4


def test_lightgbm_and_a_pooled_model_learn_from_both_parties() -> None:
    table = synthetic()
    trees, settings = train_lightgbm(table, seed=1)
    assert trees.test > 0.95 and settings
    family = tabular.FAMILIES[0]
    job = celu.Job(rounds=60, batch_size=128, hosts={"host": 64})
    pooled = train_pooled(table, *tabular.modules(table, family, 1), job)
    assert pooled.test > 0.95


def pooled_updates(patience: int | None) -> int:
    """How many updates a pooled model makes: the top's forward passes while it trains."""
    table = synthetic()
    guest, host, top = tabular.modules(table, tabular.FAMILIES[0], 1)
    seen: list[bool] = []
    top.register_forward_hook(lambda module, *_: seen.append(module.training))
    evaluation = celu.Evaluation(every=2, patience=patience)
    job = celu.Job(
        epochs=20, batch_size=400, hosts={"host": 64}, optimizer={"lr": 0.3}, evaluation=evaluation
    )
    train_pooled(table, guest, host, top, job)
    return sum(seen)


def test_a_pooled_model_gets_the_updates_of_the_guest_and_stops_by_the_same_patience() -> None:
    allowed = 20 * 3 * 3  # epochs, batches of an epoch, R at the guest
    assert pooled_updates(None) == allowed
    assert pooled_updates(1) < allowed


@pytest.mark.parametrize("seed", [1, 4])
def test_a_pooled_residual_network_is_the_federated_one_where_nothing_is_approximated(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular, "EPOCHS", 3)
    table, family = synthetic(), tabular.FAMILIES[1]
    small = {**family.bottom, "width": 8, "bins": 4}
    top = {**family.top, "width": 8}
    family = replace(family, bottom=small, top=top, job={**family.job, "batch_size": 64})
    pooled, federated = (
        train(table, family, seed, "cpu")
        for train in (tabular._train_pooled, tabular._train_federated)
    )
    assert pooled.validation == pytest.approx(federated.validation, abs=1e-9)
    assert pooled.test == pytest.approx(federated.test, abs=1e-9)


def test_a_bench_measures_every_family_and_the_figures_are_the_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    families = [replace(f, job={**f.job, "batch_size": 128}) for f in tabular.FAMILIES]
    monkeypatch.setattr(tabular, "FAMILIES", families)
    monkeypatch.setattr(tabular, "check_sources", lambda data, only: ["one", "two"])
    monkeypatch.setattr(tabular, "load_set", lambda name, data, folder: synthetic())
    result = tabular.bench_tabular(lambda line: None, None, [1])
    first, second = result.rows
    assert first["federated"] == first[first["family"]]
    assert min(first["wdl"], first["resnet"]) > 0.9
    assert result.figures["federated_less_pooled_worst"] == min(
        first["federated"] - first["pooled"], second["federated"] - second["pooled"]
    )
    assert result.figures["gap_to_lightgbm_worst"] == max(
        first["LightGBM"] - first["federated"], second["LightGBM"] - second["federated"]
    )
