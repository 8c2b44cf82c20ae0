"""The keys `precision` and `graphs` of party.toml, in every command that trains."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import celu
from celu.cli.app import app
from celu.config.party import PartySettings, read_party
from celu.engine.graphs import Graphs
from celu.errors import CeluError
from celu.launch.precision import matrix_products
from celu.testing import read_events
from cli.pair import pair_at
from federation import federation


class Seen:
    """Which settings the trainers of a run were made with, and how exact products were then."""

    def __init__(self) -> None:
        self.graphs: list[bool] = []
        self.precisions: set[str] = set()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    noted, init, before = Seen(), Graphs.__init__, torch.get_float32_matmul_precision()

    def note(self: Graphs, *arguments: Any) -> None:
        init(self, *arguments)
        noted.graphs.append(arguments[2].enabled)
        noted.precisions.add(torch.get_float32_matmul_precision())

    monkeypatch.setattr(Graphs, "__init__", note)
    yield noted
    assert torch.get_float32_matmul_precision() == before  # whatever a run had


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    pair_at(tmp_path, tmp_path / "keys")
    job = tmp_path / "job.toml"
    job.write_text(job.read_text().replace("rounds = 60", "rounds = 4"))
    return tmp_path


def prepend(pair: Path, party: str, text: str) -> None:
    path = pair / party / "party.toml"
    path.write_text(text + path.read_text())


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def simulate(pair: Path) -> list[str]:
    """The warnings of a simulation."""
    parties = [pair / name / "party.toml" for name in ("airline", "weather")]
    invoke("simulate", *parties, "--job", pair / "job.toml", "--out", pair / "run")
    return [event["message"] for event in read_events(pair / "run") if event["event"] == "warning"]


def settings_of(folder: Path, **more: Any) -> PartySettings:
    text = 'role = "guest"\nname = "guest"\n' + f'run_dir = "{folder}"\n'
    text += "".join(f"{key} = {value}\n" for key, value in more.items())
    (folder / "party.toml").write_text(text)
    return read_party(folder / "party.toml")


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("graphs", ["true", "false"])
def test_a_run_has_its_precision_until_it_ends(
    precision: str, graphs: str, tmp_path: Path, seen: Seen
) -> None:
    fed = federation(rounds=4, hosts={})
    settings = settings_of(tmp_path, precision=f'"{precision}"', graphs=graphs)
    celu.run(fed.job, fed.guest, settings)
    assert seen.precisions == {"high" if precision == "tf32" else "highest"}
    assert seen.graphs == [graphs == "true"]


def test_a_run_that_fails_leaves_the_precision_as_it_was(tmp_path: Path, seen: Seen) -> None:
    fed = federation(rounds=4, hosts={})

    def fails(event: celu.Event) -> None:
        raise ValueError("no")

    with pytest.raises(CeluError):
        celu.run(fed.job, fed.guest, settings_of(tmp_path, precision='"tf32"'), callbacks=[fails])


def test_a_process_that_computes_in_tf32_itself_continues_to() -> None:
    settings = PartySettings.model_construct(precision="fp32")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with matrix_products(settings):
            pass
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("who", ["airline", "weather"])
def test_a_simulation_captures_the_steps_of_the_parties_that_want_it(
    pair: Path, who: str, seen: Seen
) -> None:
    prepend(pair, who, "graphs = false\n")
    assert not simulate(pair)
    assert sorted(seen.graphs) == [False, True]


def test_a_simulation_is_in_tf32_if_all_parties_are(pair: Path, seen: Seen) -> None:
    prepend(pair, "airline", 'precision = "tf32"\n')
    assert any("fp32 for all parties" in text for text in simulate(pair))
    assert seen.precisions == {"highest"}
    seen.precisions.clear()
    shutil.rmtree(pair / "run")
    prepend(pair, "weather", 'precision = "tf32"\n')
    assert not simulate(pair)
    assert seen.precisions == {"high"}


def test_a_baseline_has_the_settings_of_its_party(pair: Path, seen: Seen) -> None:
    prepend(pair, "airline", 'precision = "tf32"\ngraphs = false\n')
    simulate(pair)
    seen.graphs.clear()
    seen.precisions.clear()
    party = pair / "airline" / "party.toml"
    invoke("baseline", party, "--job", pair / "job.toml", "--run", pair / "run")
    assert seen.graphs == [False] and seen.precisions == {"high"}


def test_a_search_has_the_settings_of_its_parties(pair: Path, seen: Seen) -> None:
    pytest.importorskip("optuna", reason="the extra tune is absent")
    (pair / "space.toml").write_text("optimizer.lr = [0.1]\n")
    for who in ("airline", "weather"):
        prepend(pair, who, 'precision = "tf32"\n')
    prepend(pair, "weather", "graphs = false\n")
    parties = [pair / name / "party.toml" for name in ("airline", "weather")]
    files = ("--job", pair / "job.toml", "--space", pair / "space.toml", "--out", pair / "tune")
    invoke("tune", *parties, *files, "--trials", "1")
    assert sorted(seen.graphs) == [False, True] and seen.precisions == {"high"}
