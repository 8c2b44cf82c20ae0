"""A hostile process that restarts during `celu align` cannot test other ids under the same key."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

import celu
from celu.config.party import read_party
from celu.errors import ProtocolError
from celu.events import ignore
from celu.launch.aligning import align_party
from celu.testing import free_port
from stores import write_store

DEADLINE_S = 300.0
PARTY = """
role = "guest"
name = "guest"
listen = "127.0.0.1:{port}"
insecure = true
threads = 1
connect_s = 300
[data]
store = "store"
alignment = "alignment"
[peers.host]
"""


def probe(port: int, first_id: int) -> str:
    tests = Path(__file__).parents[2]
    path = os.pathsep.join([str(Path(celu.__file__).parents[1]), str(tests)])
    done = subprocess.run(
        [sys.executable, "-m", "psi.prober", str(port), str(first_id)],
        capture_output=True,
        check=False,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 9, done.stderr
    return done.stdout


def test_a_process_that_restarts_with_other_ids_is_refused(tmp_path: Path) -> None:
    write_store(tmp_path / "store", {"a": np.arange(9, dtype=np.float32)})
    port = free_port()
    (tmp_path / "party.toml").write_text(PARTY.format(port=port))
    settings = read_party(tmp_path / "party.toml")
    job = celu.Job(rounds=1, hosts={"host": 4})
    outcome: queue.SimpleQueue[object] = queue.SimpleQueue()

    def guest() -> None:
        try:
            outcome.put(align_party(settings, job, lambda port: None, ignore))
        except BaseException as error:
            outcome.put(error)

    threading.Thread(target=guest, daemon=True).start()
    assert probe(port, 0) == "answered"
    assert probe(port, 0) == "answered"  # the guest starts over by itself
    assert probe(port, 100) == "refused"
    error = outcome.get(timeout=DEADLINE_S)
    assert isinstance(error, ProtocolError), repr(error)
    assert "expected the elements that were answered before the restart" in str(error)
    work = tmp_path / ".alignment.work" / "host"
    assert [path.name for path in work.iterdir()] == ["answered"]
