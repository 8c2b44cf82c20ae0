"""The commands: help, output, exit codes, and the settings in the docs."""

import json
import os
import pty
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from celu.cli.app import app
from celu.cli.run import invitation, job_option
from celu.config.party import PartySettings
from celu.data.memory_map import open_datasets
from celu.data.store import open_store
from celu.errors import CeluError, ConfigError, DataError
from stores import write_store

COMMANDS = (
    *("demo", "certs", "data", "prepare", "split", "inspect", "models", "align", "check"),
    *("doctor", "run", "simulate", "tune", "baseline", "export", "predict", "evaluate", "audit"),
    *("serve", "report", "dashboard", "bench", "version"),
)


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code in (0, 2), result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_celu_without_arguments_says_what_to_do_first() -> None:
    text = invoke()
    assert "celu demo" in text
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    assert len(invoke(command, "--help")) > 150


def test_the_list_of_commands_here_is_complete() -> None:
    assert set(COMMANDS) == set(get_command(app).commands)  # type: ignore[attr-defined]


def help_texts(command: Any) -> Iterator[str]:
    """What a command, its options and the commands in it say of themselves, with markup."""
    yield command.help or ""
    yield from (getattr(param, "help", None) or "" for param in command.params)
    for inner in getattr(command, "commands", {}).values():
        yield from help_texts(inner)


def test_no_help_text_loses_words_in_brackets_to_markup() -> None:
    for text in help_texts(get_command(app)):
        styles = set(re.findall(r"(?<!\\)\[/?([a-z#@][^\[\]]*)\]", text))
        assert styles <= {"bold"}, text
    assert "contract's [evaluation]" in " ".join(invoke("tune", "--help").split())
    assert "Name them in [model] of" in " ".join(invoke("models", "--help").split())
    assert "whose section [serve] has" in " ".join(invoke("serve", "--help").split())


def test_every_exit_code_is_in_the_help_and_in_the_docs() -> None:
    def subclasses(cls: type[CeluError]) -> list[type[CeluError]]:
        return [cls, *(s for c in cls.__subclasses__() for s in subclasses(c))]

    codes = [e.exit_code for e in subclasses(CeluError) if "exit_code" in vars(e)]
    assert len(set(codes)) == len(codes)
    text = " ".join(invoke("--help").split())
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for code in [0, 2, 130, *codes]:
        assert re.search(rf"\b{code} \w", text), code
        assert f"\n| {code} | " in page, code


def test_the_settings_files_in_the_reference_are_valid(tmp_path: Path) -> None:
    from celu.config.job import read_job
    from celu.config.party import check_names, read_party
    from celu.config.serving import read_serving
    from celu.config.space import read_space

    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    job, party, serving, space = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "job.toml").write_text(job)
    (tmp_path / "party.toml").write_text(party)
    settings = read_party(tmp_path / "party.toml")
    contract = read_job(tmp_path / "job.toml")
    check_names(contract, settings, tmp_path / "party.toml")
    for name, text in {"serving.toml": serving, "space.toml": space}.items():
        (tmp_path / name).write_text(text)
    check_names(read_serving(tmp_path / "serving.toml"), settings, tmp_path / "party.toml")
    assert len(read_space(tmp_path / "space.toml", contract).dimensions) == 4


def test_the_schema_in_the_docs_is_valid_and_makes_a_store(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (schema,) = re.findall(r"```toml file=schema.toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "schema.toml").write_text(schema)
    rows = ["customer,churned,age,spent,city,device,visits,joined,interests"]
    for i in range(300):
        age = i % 70 if i % 9 else "NA"
        joined = f"20{18 + i % 5}-{1 + i % 12:02}-03"
        bag = "a|b" if i % 2 else "a"
        rows.append(f"c{i},{i % 3 % 2},{age},{i * i % 97},{i % 11},{i % 5},{i % 40},{joined},{bag}")
    (tmp_path / "customers.csv").write_text("\n".join(rows) + "\n")
    store = tmp_path / "store"
    invoke(
        "prepare", tmp_path / "customers.csv", "--schema", tmp_path / "schema.toml", "--out", store
    )
    text = invoke("inspect", store)
    for shown in ("age", "spent", "city", "device", "positive rate", "100,000 buckets", "13 codes"):
        assert shown in text, shown
    assert "4 quantiles" in text and "bag, 4 codes" in text
    assert "no problems found" in text


def test_inspect_shows_what_a_run_would_refuse(tmp_path: Path) -> None:
    write_store(tmp_path / "store", {"x": np.ones(50, np.float32), "c": np.full(50, 7)}, {"c": 5})
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "store")])
    assert isinstance(result.exception, DataError)
    assert "column 'c': expected codes from 0" in result.output
    assert "warning" in result.output and "column 'x': all 50 values are the same" in result.output


@pytest.mark.parametrize("shape", ["criteo", "avazu"])
def test_synthetic_clicks_come_with_settings_that_run(shape: str, tmp_path: Path) -> None:
    folder = tmp_path / shape
    printed = invoke("data", shape, folder, "--rows", "12000")
    job = folder / "job.toml"
    job.write_text(
        job.read_text()
        .replace("batch_size = 4096", "batch_size = 512")
        .replace("rounds = 2000", "rounds = 12")
        .replace("every = 200", "every = 6")
    )
    line = next(line for line in printed.splitlines() if "celu simulate" in line)
    invoke(*line.split()[1:])
    events = [json.loads(e) for e in (folder / "run" / "events.jsonl").read_text().splitlines()]
    scores = [e["auc"] for e in events if e["event"] == "evaluation"]
    assert len(scores) == 2 and scores[-1] > 0.55


def test_synthetic_rows_with_the_same_seed_are_equal(tmp_path: Path) -> None:
    for name in ("a", "b"):
        invoke("data", "avazu", tmp_path / name, "--rows", "1000", "--seed", "5")
    a, b = (
        open_datasets(
            open_store(tmp_path / n / "guest" / "store"), {"ids": ["C14", "C21"]}, label=True
        ).train
        for n in ("a", "b")
    )
    assert a.inputs["ids"].equal(b.inputs["ids"])


def test_version_prints_what_a_bug_report_needs() -> None:
    text = invoke("version")
    needed = ("celu", "python", "torch", "torch build", "grpcio", "cpus", "platform")
    assert all(re.search(rf"^{name} \S", text, re.MULTILINE) for name in needed)
    assert re.findall(r"^extra (\w+) \S", text, re.MULTILINE) == [
        *("flights", "zstd", "websocket", "figures", "dashboard", "serve"),
        *("tensorboard", "mlflow", "wandb", "tune", "tabular", "onnx"),
    ]


def test_every_extra_that_a_user_may_install_is_in_version() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"].keys() - {"dev"}
    assert extras == set(re.findall(r"^extra (\w+)", invoke("version"), re.MULTILINE))


def test_a_shell_completes_commands() -> None:
    variables = {"_CELU_COMPLETE": "complete_bash", "COMP_WORDS": "celu al", "COMP_CWORD": "1"}
    ran = subprocess.run(
        [Path(sys.executable).with_name("celu")],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.stdout.split() == ["align"], ran.stderr


def test_commands_that_compute_nothing_start_without_torch() -> None:
    code = "import sys, celu.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=600, check=False).returncode == 0


@pytest.mark.parametrize("on_a_terminal", [True, False])
def test_an_error_is_coloured_on_a_terminal_and_plain_elsewhere(
    on_a_terminal: bool, tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    stderr = theirs if on_a_terminal else subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", "celu.cli.app", "run", "party.toml"],
        cwd=tmp_path,
        stderr=stderr,
        env={k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"},
    )
    os.close(theirs)
    _, piped = process.communicate(timeout=600)
    printed = os.read(ours, 4096) if on_a_terminal else piped
    os.close(ours)
    assert process.returncode == 3
    assert b"ConfigError" in printed and b"job.toml" in printed
    assert (b"\x1b[" in printed) is on_a_terminal


@pytest.mark.parametrize(
    ("job", "option"),
    [("job.toml", "--job job.toml"), ("flights 2013/job.toml", "--job 'flights 2013/job.toml'")],
)
def test_the_line_for_the_other_side_names_the_contract_as_it_was_given(
    job: str, option: str
) -> None:
    settings = PartySettings(
        role="guest", name="bank", insecure=True, listen="10.0.0.7:0", peers={"shop": {}}
    )
    assert invitation(settings, 7443, "align", job_option(Path(job))) == (
        "bank listens on port 7443. The other side runs:\n"
        f"  shop:  celu align party.toml {option} --connect bank=10.0.0.7:7443"
    )


def test_the_help_of_align_names_both_groups() -> None:
    text = " ".join(invoke("align", "--help").split())
    assert "P-256 or X25519" in text


@pytest.mark.parametrize("command", ["simulate", "predict", "check", "align"])
def test_a_command_that_is_one_process_is_refused_under_torchrun(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "1"), ("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, [command, str(tmp_path / "party.toml")])
    assert isinstance(result.exception, ConfigError)
    assert f"got celu {command} at 2 ranks; start it without torchrun" in str(result.exception)
    assert CliRunner().invoke(app, ["version"]).exit_code == 0
