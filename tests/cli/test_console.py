"""The console: text from files and peers in it, and output that cannot be written."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from rich.markup import escape
from rich.table import Table

from celu import cli
from celu.cli.console import Console
from cli.pair import DEADLINE_S
from stores import write_store

# It sets a terminal's title, clears its screen, and would be markup and an emoji.
HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]a[/red]:x:"
HARMLESS = "?]0;owned??[2J[red]a[/red]:x:"
COMMAND = [sys.executable, "-m", "celu.cli.app"]


def run(
    *arguments: str | Path, stdout: int | IO[bytes] = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
        timeout=DEADLINE_S,
        check=False,
    )


def hostile_store(folder: Path) -> Path:
    write_store(folder / "store", {HOSTILE: np.zeros(64, np.float32)})
    return folder / "store"


def test_a_stores_column_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    shown = run("inspect", hostile_store(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert b"\x1b" not in shown.stdout and b"\x07" not in shown.stdout
    assert HARMLESS in shown.stdout.decode()


def test_a_csv_header_cannot_control_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"id,{HOSTILE}\n1,2\n")
    (tmp_path / "schema.toml").write_text('id = "id"\n[numbers.absent]\n')
    arguments = ("--schema", tmp_path / "schema.toml", "--out", tmp_path / "store")
    refused = run("prepare", tmp_path / "rows.csv", *arguments)
    assert refused.returncode == 4
    assert b"\x1b" not in refused.stderr and b"\x07" not in refused.stderr
    assert "owned" in refused.stderr.decode()


def test_text_in_markup_in_a_table_or_as_a_title_cannot_control_the_terminal() -> None:
    out = io.StringIO()
    table = Table(title=escape(HOSTILE))
    table.add_column(escape(HOSTILE))
    table.add_row(escape(HOSTILE))
    console = Console(file=out)
    console.print(f"[bold]bold[/bold] {escape(HOSTILE)}", soft_wrap=True)
    console.print(table)
    assert "\x1b" not in out.getvalue() and "\x07" not in out.getvalue()
    assert out.getvalue().count(HARMLESS) == 4


class Full(io.StringIO):
    """A file on a full disk."""

    attempts = 0

    def write(self, text: str) -> int:
        self.attempts += 1
        raise OSError(28, "No space left on device")


def test_output_that_fails_is_attempted_once() -> None:
    full = Full()
    console = Console(file=full)
    for _ in range(3):
        console.print("progress")
    assert full.attempts == 1


def test_output_to_a_closed_stream_or_to_none_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    console = Console(file=closed)
    closed.close()
    console.print("progress")
    monkeypatch.setattr(sys, "stdout", None)
    Console().print("progress")


def test_characters_that_the_stream_cannot_encode_are_replaced() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    Console(file=stream).print("loss · 1")
    assert raw.getvalue() == b"loss ? 1\n"


@pytest.mark.parametrize("where", ["a closed pipe", "a full disk", "nowhere"])
def test_a_command_whose_output_cannot_be_written_ends_by_its_result(
    where: str, tmp_path: Path
) -> None:
    write_store(tmp_path / "store", {"a": np.arange(64, dtype=np.float32)})
    arguments = ["inspect", str(tmp_path / "store")]
    if where == "a closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            done = run(*arguments, stdout=pipe)
    elif where == "a full disk":
        with Path("/dev/full").open("wb") as full:
            done = run(*arguments, stdout=full)
    else:
        script = 'exec "$@" >&-'
        done = subprocess.run(
            ["sh", "-c", script, "sh", *COMMAND, *arguments],
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_every_command_prints_through_the_console() -> None:
    allowed = {"console.py"}
    for path in Path(cli.__file__).parent.glob("*.py"):
        called = {
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        }
        writes = {"print", "typer.echo", "typer.secho", "click.echo", "rich.print"} & called
        direct = {name for name in called if name.startswith(("sys.stdout.", "sys.stderr."))}
        assert path.name in allowed or not writes | direct, path


def test_a_folders_name_cannot_control_the_terminal(tmp_path: Path) -> None:
    made = run("certs", "ca", "--dir", tmp_path / HOSTILE.replace("/", ""))
    assert made.returncode == 0, made.stderr
    assert b"\x1b" not in made.stdout and b"\x07" not in made.stdout
    assert HARMLESS.replace("/", "") in made.stdout.decode()
