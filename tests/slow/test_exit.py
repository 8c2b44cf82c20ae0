"""A process whose main thread ended with an error exits with its code, whatever its threads do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from celu.checkpoint.generations import Checkpoints
from celu.errors import CeluError, CheckpointError, DataError, PeerLost

DEADLINE_S = 300.0  # generous: a stuck process never ends
PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path

import torch

from celu.errors import CeluError, DataError, PeerLost

is_stuck = threading.Event()
folder = Path(sys.argv[1])


def hang(*args, **options):
    is_stuck.set()
    open(folder / "fifo", "rb")  # nobody writes to it


def run(main):
    try:
        main()
    except CeluError as error:
        print(type(error).__name__, error)
        sys.exit(error.exit_code)


def loader():
    from celu.config.job import Order
    from celu.data.batch_loader import BatchLoader
    from celu.data.dataset import Dataset
    from celu.data.order import BatchOrder

    rows = Dataset({"x": torch.ones(50_000, 2)}, None)
    return BatchLoader(rows, BatchOrder(1, 50_000, 10, Order()), torch.device("cpu"))
"""
WRITER = """
from celu.checkpoint.disk import RealDisk
from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.checkpoint.writer import BackgroundWriter


class HungDisk(RealDisk):
    def write(self, path, parts):
        if path.name == "tensors.safetensors":
            hang()
        super().write(path, parts)


def main():
    checkpoints = Checkpoints(folder / "run", HungDisk(), BackgroundWriter(timeout_s=0.5))
    checkpoints.start(RunIdentity("a" * 32, {}), 0)
    checkpoints.save(Snapshot(1, {"w": torch.ones(2)}, {}), 2)
    is_stuck.wait()
    checkpoints.flush()


run(main)
"""
PREFETCHED_BATCH = """
from contextlib import closing

from celu.data.batch_loader import BatchLoader


def main():
    gather = BatchLoader._gather
    BatchLoader._gather = lambda self, round_: hang() if round_ == 1 else gather(self, round_)
    with closing(loader()) as batches:
        batches.batch(0)
        is_stuck.wait()
        raise PeerLost("the peer is gone")


run(main)
"""
REQUESTED_BATCH = """
from contextlib import closing

from celu.data import batch_loader


def main():
    batch_loader._TIMEOUT_S = 0.5
    batch_loader.BatchLoader._gather = hang
    with closing(loader()) as batches:
        batches.batch(0)


run(main)
"""
FAILED_BATCH = """
from contextlib import closing

from celu.data.batch_loader import BatchLoader


def fail(self, round_):
    raise DataError("the rows are damaged")


def main():
    BatchLoader._gather = fail
    with closing(loader()) as batches:
        batches.batch(0)


run(main)
"""
KILLED_WORKER = """
from celu.psi.group import ID_BYTES
from celu.psi.workers import Workers


def main():
    with Workers(2) as workers:
        requests = [workers.blind(b"k" * 32, b"s" * 32, bytes(5000 * ID_BYTES)) for _ in range(9)]
        workers._processes[0].send_signal(signal.SIGKILL)
        for request in requests:
            request.result()


run(main)
"""
STOPPED_WORKER = """
from celu.psi.group import ID_BYTES
from celu.psi.workers import Workers


def main():
    with Workers(2) as workers:
        for process in workers._processes:
            process.send_signal(signal.SIGSTOP)
        workers.blind(b"k" * 32, b"s" * 32, bytes(5000 * ID_BYTES))
        raise PeerLost("the peer is gone")


run(main)
"""
GRPC_CLIENT = """
import grpc

from celu.transport.carrier import Admission
from celu.transport.grpc_carrier import Listener


def main():
    Admission.authenticate = hang
    listener = Listener("127.0.0.1:0", Admission({}, None))
    channel = grpc.insecure_channel(f"127.0.0.1:{listener.port}")
    call = channel.stream_stream("/celu.Link/Exchange")(iter([]))
    is_stuck.wait()
    listener.stop()
    raise PeerLost("the peer is gone")


run(main)
"""
NAME_RESOLUTION = """
import socket

from celu.transport import websocket_carrier
from celu.transport.carrier import Route
from celu.transport.stream import StreamLink


def main():
    socket.getaddrinfo = hang
    websocket_carrier._LIMITS["open_timeout"] = 0.5
    link = StreamLink("host", deadline_s=10.0)
    websocket_carrier.OutgoingConnection(
        Route("host.example:1"), "guest", "host", None, lambda: link.new_connection(dials=True)
    )


run(main)
"""
RAW_FILE = """
from celu.prepare.prefetch import prefetch


def blocks():
    yield 1
    hang()
    yield 2


def main():
    for block in prefetch(blocks()):
        is_stuck.wait()
        raise DataError("a row is damaged")


run(main)
"""
SPILL = """
from types import SimpleNamespace

from celu.config.schema import ROW_NUMBER, Split
from celu.prepare.passes import ScanSettings, spill_rows
from celu.prepare.raw_file import Block


def blocks(kinds, threads):
    yield Block({}, 5, 100)


def fail(*progress):
    is_stuck.wait()
    raise DataError("the progress cannot be shown")


def main():
    file = SimpleNamespace(num_bytes=100, blocks=blocks)
    settings = ScanSettings(None, ROW_NUMBER, Split())
    spill_rows([file], {}, settings, [], SimpleNamespace(add=hang), fail, 1)


run(main)
"""
FOREIGN_THREAD = """
from celu.cli import app


def main():
    threading.Thread(target=hang).start()  # as a user's module may do
    is_stuck.wait()
    app._EXIT_S = 0.5
    sys.argv = ["celu", "run", str(folder / "missing.toml")]
    app.main()


main()
"""


def run(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    os.mkfifo(tmp_path / "fifo")
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + script)
    return subprocess.run(
        [sys.executable, str(path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param(WRITER, CheckpointError, id="a checkpoint that is never written"),
        pytest.param(PREFETCHED_BATCH, PeerLost, id="a batch that is never read"),
        pytest.param(REQUESTED_BATCH, DataError, id="a batch that is waited for"),
        pytest.param(FAILED_BATCH, DataError, id="a batch that cannot be read"),
        pytest.param(KILLED_WORKER, CeluError, id="a worker that was killed"),
        pytest.param(STOPPED_WORKER, PeerLost, id="a worker that was stopped"),
        pytest.param(GRPC_CLIENT, PeerLost, id="a client of gRPC"),
        pytest.param(NAME_RESOLUTION, PeerLost, id="a name that is never resolved"),
        pytest.param(RAW_FILE, DataError, id="a raw file that is never read"),
        pytest.param(SPILL, DataError, id="rows that are never spilled"),
    ],
)
def test_a_stuck_or_failed_thread_does_not_delay_the_exit_after_an_error(
    tmp_path: Path, script: str, error: type[CeluError]
) -> None:
    done = run(tmp_path, script)
    assert done.returncode == error.exit_code, done.stderr
    assert done.stdout.startswith(error.__name__) and not done.stderr


def test_a_stuck_thread_of_another_library_does_not_delay_the_exit_of_a_command(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, FOREIGN_THREAD)
    assert done.returncode == 3
    assert done.stderr.startswith("ConfigError")


HEALTHY_END = """
from celu.checkpoint.disk import RealDisk
from celu.checkpoint.generations import Checkpoints
from celu.events import ignore
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links, run_together
from federation import federation


class SlowDisk(RealDisk):
    def write(self, path, parts):
        if path.name == "tensors.safetensors":
            time.sleep(1.0)
        super().write(path, parts)


fed = federation(rounds=4, checkpoint={"every": 4})
to_host, to_guest = memory_links("guest", "host")
host = host_session(
    *("host", fed.hosts["host"], fed.job, to_guest, ignore),
    checkpoints=Checkpoints(folder / "host", SlowDisk()),
)
guest = guest_session(
    *("guest", fed.guest, fed.job, {"host": to_host}, ignore),
    checkpoints=Checkpoints(folder / "guest", SlowDisk()),
)
run_together({"host": host, "guest": guest}, [to_host])
"""


def test_a_run_that_ends_without_an_error_waits_for_its_last_checkpoint(tmp_path: Path) -> None:
    done = run(tmp_path, HEALTHY_END)
    assert done.returncode == 0, done.stderr
    for party in ("guest", "host"):
        assert Checkpoints(tmp_path / party).available_rounds() == [0, 4]


BUSY_THREAD = """
import atexit

from celu import threads

threads.EXIT_S = 300.0


def work():
    while not folder.joinpath("ended").exists():
        x = torch.ones(1000) + 1
    folder.joinpath("seen").touch()


pool = threads.DaemonThreads(1, "busy")
pool.submit(work)
atexit.register(folder.joinpath("ended").touch)
"""
CPP_THREAD = """
from celu.cli import app


def main():
    def work():
        while True:
            x = torch.ones(100_000) + 1  # PyTorch waits for the lock of Python inside C++ code
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    sys.argv = ["celu", "version"]
    app.main()


main()
"""


def test_our_threads_end_before_python_stops_them(tmp_path: Path) -> None:
    done = run(tmp_path, BUSY_THREAD)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "seen").exists()


def test_a_command_does_not_stop_the_threads_of_other_libraries_in_their_code(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, CPP_THREAD)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("celu ")
