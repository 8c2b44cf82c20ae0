"""`celu run` when its output cannot be written: training continues."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.pair import DEADLINE_S, ended, pair_at
from processes import STDOUT, CeluProcess


@contextmanager
def unwritable(where: str) -> Iterator[int]:
    if where == "a full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("where", ["a closed pipe", "a full disk"])
def test_a_run_whose_output_cannot_be_written_trains_to_its_end(
    where: str, tmp_path: Path, keys: Path
) -> None:
    pair = pair_at(tmp_path, keys)
    arguments = ["run", tmp_path / "airline" / "party.toml", "--job", tmp_path / "job.toml"]
    with unwritable(where) as output:
        guest = CeluProcess(arguments, stdout=output, stderr=STDOUT)
        host = ended(pair.start("weather"))
        assert guest.wait(timeout=DEADLINE_S) == 0
    assert host.code == 0, host.err
    summary = json.loads((tmp_path / "airline" / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("done", 60)
