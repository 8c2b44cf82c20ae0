"""A warm start: a run that begins with the weights of an earlier one."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import celu
from celu.engine.setup import RunTerms
from celu.errors import ConfigError, ContractMismatch, ModelError
from celu.events import ignore
from celu.launch.recording import record_model
from celu.launch.starting import load_start
from celu.run_folder import RunFolder
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links
from federation import Federation, assert_same_bits, federation
from psi.parties import run_to_completion


def recorded(fed: Federation, folder: Path) -> celu.Result:
    """Train, and record each party's part of the model in a run folder."""
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    for name, party in {"guest": fed.guest, **fed.hosts}.items():
        run = RunFolder(folder / name, {"job": {}, "party": {"name": name}})
        record_model(run, result, party)
        run.finish({"status": "done"})
    return result


def test_the_modules_have_the_weights_of_the_earlier_run(tmp_path: Path) -> None:
    new, trained = federation(), federation()
    model = recorded(trained, tmp_path).model
    names = {
        load_start(tmp_path / "guest", "guest", new.guest),
        load_start(tmp_path / "host", "host", new.hosts["host"]),
    }
    assert names == {model.name}
    assert_same_bits(new.weights(), trained.weights())


def test_optimizer_and_table_start_new(tmp_path: Path) -> None:
    trained, warm = federation(), federation()
    recorded(trained, tmp_path)
    load_start(tmp_path / "guest", "guest", warm.guest)
    load_start(tmp_path / "host", "host", warm.hosts["host"])
    expected = copy.deepcopy(trained)  # the same weights, in a run of their own
    for fed in (warm, expected):
        celu.simulate(fed.job, fed.guest, fed.hosts)
    assert_same_bits(warm.weights(), expected.weights())


def outcomes(starts: tuple[str | None, str | None]) -> list[object]:
    fed = federation()
    to_host, to_guest = memory_links("guest", "host")
    guest_terms, host_terms = (RunTerms(start=start) for start in starts)
    guest = guest_session("guest", fed.guest, fed.job, {"host": to_host}, ignore, terms=guest_terms)
    host = host_session("host", fed.hosts["host"], fed.job, to_guest, ignore, terms=host_terms)
    found = run_to_completion(
        {"guest": guest, "host": host}, {"guest": [to_host], "host": [to_guest]}
    )
    return list(found.values())


@pytest.mark.parametrize("starts", [("a" * 16, "b" * 16), ("a" * 16, None), (None, "b" * 16)])
def test_parts_of_different_models_are_refused_at_both_parties(
    starts: tuple[str | None, str | None],
) -> None:
    for outcome in outcomes(starts):
        assert isinstance(outcome, ContractMismatch)
        assert "start_model: " in str(outcome) and "parts of one model" in str(outcome)


def test_parts_of_one_model_are_accepted() -> None:
    assert all(isinstance(outcome, celu.Result) for outcome in outcomes(("a" * 16, "a" * 16)))


def test_a_folder_of_another_party_is_refused(tmp_path: Path) -> None:
    fed = federation()
    recorded(fed, tmp_path)
    with pytest.raises(ConfigError, match="expected a run of shop, got one of guest, host"):
        load_start(tmp_path / "host", "shop", fed.hosts["host"])


def test_weights_that_are_not_those_of_the_run_are_refused(tmp_path: Path) -> None:
    fed = federation()
    recorded(fed, tmp_path)
    weights = tmp_path / "host" / "weights.safetensors"
    weights.write_bytes((tmp_path / "guest" / "weights.safetensors").read_bytes())
    with pytest.raises(ModelError, match="expected the weights of host in model"):
        load_start(tmp_path / "host", "host", fed.hosts["host"])


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    fed = federation()
    recorded(fed, tmp_path)
    (tmp_path / "host" / "weights.safetensors").write_bytes(b"not weights")
    with pytest.raises(ConfigError, match=r"weights.safetensors: expected the weights of a run"):
        load_start(tmp_path / "host", "host", fed.hosts["host"])
    with pytest.raises(ConfigError, match="expected the identity of a trained model"):
        load_start(tmp_path / "nothing", "host", fed.hosts["host"])


def test_a_model_of_another_shape_is_refused_by_the_name_of_the_tensor(tmp_path: Path) -> None:
    fed = federation()
    recorded(fed, tmp_path)
    before = copy.deepcopy(fed.hosts["host"].bottom.state_dict())
    other = celu.Host(
        bottom=nn.Linear(3, 6), train=fed.hosts["host"].train, test=fed.hosts["host"].test
    )
    with pytest.raises(ModelError, match=r"bottom\.bias: expected torch.float32 of \[6\]"):
        load_start(tmp_path / "host", "host", other)
    assert all(torch.equal(before[n], t) for n, t in fed.hosts["host"].bottom.state_dict().items())
