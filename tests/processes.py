"""`celu` as a process that starts in milliseconds: forked from one that has imported torch.

Importing torch takes seconds of CPU time, and the tests start hundreds of processes. A forked one
differs from one that a shell starts in its imports only; the tests of packaging and docs use a
shell.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

PIPE, STDOUT = subprocess.PIPE, subprocess.STDOUT
DEADLINE_S = 900.0  # a passing test never waits this long, even on a busy machine


class ForkServer:
    """The process that others are forked from (`fork_server.py`)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
            )

    def start(
        self,
        arguments: Sequence[str],
        out: int,
        err: int,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Start `celu` with open files for its output; returns its process id."""
        request = {
            "start": list(arguments),
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
        }
        return int(self._ask(request, [out, err])["pid"])

    def poll(self, pid: int) -> int | None:
        """The exit code of a process, as in `subprocess`, once; None while it runs."""
        code: int | None = self._ask({"poll": pid}, [])["code"]
        return code

    def stop(self) -> None:
        """End the server and every process that still runs."""
        self._requests.close()
        self._process.wait(DEADLINE_S)

    def _ask(self, request: Mapping[str, Any], files: list[int]) -> dict[str, Any]:
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], files)
            answer: dict[str, Any] = json.loads(self._requests.recv(1 << 16))
        return answer


@functools.cache
def shared_server() -> ForkServer:
    """One for all tests of a worker."""
    server = ForkServer()
    atexit.register(server.stop)
    return server


class CeluProcess:
    """`celu` with some arguments; has what the tests use of `subprocess.Popen[str]`."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        stdout: int = PIPE,
        stderr: int = PIPE,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._server = shared_server()
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self.returncode: int | None = None
        self._outputs: tuple[str, str] | None = None
        if stdout == PIPE:
            self.stdout, out = _pipe()
        else:
            out = os.dup(stdout)
        if stderr == PIPE:
            self.stderr, err = _pipe()
        else:
            err = os.dup(out)
        self.pid = self._server.start([*map(str, arguments)], out, err, env, cwd)
        for file in (out, err):
            os.close(file)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.poll(self.pid)
        return self.returncode

    def wait(self, timeout: float = DEADLINE_S) -> int:
        """The exit code, once it has ended; raises TimeoutExpired."""
        if self.returncode is None:
            file = os.pidfd_open(self.pid)
            try:
                ended = select.poll()
                ended.register(file, select.POLLIN)
                if not ended.poll(1000 * timeout):
                    raise subprocess.TimeoutExpired("celu", timeout)
            finally:
                os.close(file)
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, timeout: float = DEADLINE_S) -> tuple[str, str]:
        """Its output, once it has ended; it is killed if it does not end in time."""
        if self._outputs is None:
            streams = self.stdout, self.stderr
            with ThreadPoolExecutor(2) as readers:
                texts = [readers.submit(stream.read) if stream else None for stream in streams]
                try:
                    self.wait(timeout)
                except subprocess.TimeoutExpired:
                    self.kill()
                    raise
            self._outputs = tuple(text.result() if text else "" for text in texts)  # type: ignore[assignment]
            for stream in streams:
                if stream:
                    stream.close()
        return self._outputs

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def suspend(self) -> None:
        """Stop it until SIGCONT; returns once all its threads have stopped."""
        self.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + DEADLINE_S
        while not all(
            stat.read_text().rpartition(") ")[2].startswith("T")
            for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")
        ):
            assert time.monotonic() < deadline, f"not stopped within {DEADLINE_S:g} s"
            time.sleep(0.01)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _pipe() -> tuple[IO[str], int]:
    ours, theirs = os.pipe()
    return os.fdopen(ours, encoding="utf-8"), theirs


def run_celu(
    *arguments: str | Path,
    timeout: float = DEADLINE_S,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `celu` to its end."""
    process = CeluProcess(arguments, env=env, cwd=cwd)
    out, err = process.communicate(timeout)
    assert process.returncode is not None
    return subprocess.CompletedProcess([*map(str, arguments)], process.returncode, out, err)
