"""The model of a simulation, from the modules that it trained in place."""

from __future__ import annotations

import pytest
import torch

import celu
from celu.errors import ConfigError, ModelError
from federation import ROWS, federation


def test_one_company_predicts_with_all_parts_of_a_simulation() -> None:
    fed = federation(rounds=15)
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    models = celu.models_of(result, fed.job, fed.guest, fed.hosts)
    assert {model.name for model in models.values()} == {result.model.name}
    hosts = {"host": (models["host"], fed.hosts["host"].test)}
    found = celu.predict(models["guest"], fed.guest.test, hosts, ids=[f"p{n}" for n in range(ROWS)])
    assert found.model == result.model.name and found.ids[-1] == f"p{ROWS - 1}"
    assert not any(module.training for module in (fed.guest.top, fed.hosts["host"].bottom))
    labels = fed.guest.test.labels
    assert labels is not None
    measured = celu.evaluate(found.scores, labels, output="binary", resamples=0)
    assert measured.overall.metrics["auc"].value == pytest.approx(result.metrics["auc"])


def test_modules_that_were_trained_again_are_refused() -> None:
    fed = federation(rounds=3)
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    with torch.no_grad():
        next(fed.hosts["host"].bottom.parameters()).add_(1)
    with pytest.raises(
        ModelError, match=f"host: expected the weights of model {result.model.name}"
    ):
        celu.models_of(result, fed.job, fed.guest, fed.hosts)


def test_the_hosts_are_those_of_the_job() -> None:
    fed = federation(rounds=3)
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    with pytest.raises(ConfigError, match=r"hosts: expected \['host'\] as in the job, got \[\]"):
        celu.models_of(result, fed.job, fed.guest, {})
