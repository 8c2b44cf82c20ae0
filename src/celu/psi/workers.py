"""Worker processes for the curve multiplications, so that they use all cores.

A worker is this module run as a process: it reads requests from standard input, writes replies to
standard output, and exits at the end of its input, so it never outlives its party. Requests and
replies are length-prefixed bytes; keys are passed in no other way.

    request   B task, I I I lengths    key, session, elements
    reply     B success, I length      elements, or the error message

Nothing here imports torch, so that a worker is small and starts quickly.
"""

from __future__ import annotations

import os
import queue
import signal
import struct
import subprocess
import sys
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from celu.errors import CeluError, ProtocolError
from celu.psi.group import GROUPS, ID_BYTES, Group
from celu.threads import DaemonThreads

_REQUEST = struct.Struct("<BIII")
_REPLY = struct.Struct("<BI")
_BLIND, _REBLIND = 0, 1
_STOP_S = 5.0
ANSWER_S = 600.0  # for one chunk, which takes a second or two even on a slow core


def result_of(request: Future[bytes]) -> bytes:
    """The elements of a request to a worker; raises what `Workers` says, CeluError at a limit."""
    try:
        return request.result(ANSWER_S)
    except TimeoutError as error:
        raise CeluError(
            f"a worker process gave no answer in {ANSWER_S:g} s; is it suspended, or the machine "
            "out of memory? Start again to resume, with fewer threads in party.toml if it recurs"
        ) from error


class Workers:
    """Blinds elements in `num_processes` processes; with 0, inline. Close it, or use `with`.

    A future raises ProtocolError for an invalid element, and CeluError if its worker died.
    """

    def __init__(self, num_processes: int = 0, group: str = "P-256") -> None:
        self.group: Group = GROUPS[group]
        self.multiplications = 0  # requested so far
        self._processes = [_start(group) for _ in range(num_processes)]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = DaemonThreads(num_processes, "celu-psi") if num_processes else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def blind(self, key: bytes, session: bytes, ids: bytes) -> Future[bytes]:
        """See `Group.blind`."""
        self.multiplications += len(ids) // ID_BYTES
        return self._submit(_BLIND, key, session, ids)

    def reblind(self, key: bytes, elements: bytes) -> Future[bytes]:
        """See `Group.reblind`."""
        self.multiplications += len(elements) // self.group.element_bytes
        return self._submit(_REBLIND, key, b"", elements)

    def close(self) -> None:
        """Kill the workers and cancel pending requests. May be called twice."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # it has no state; an interrupted request is repeated on resume
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):  # the system cannot end it now
                process.wait(_STOP_S)
        if self._threads is not None and not self._threads.close():
            return  # closing a pipe would wait for the thread that reads it
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                _close(pipe)

    def _submit(self, task: int, key: bytes, session: bytes, elements: bytes) -> Future[bytes]:
        if self._threads is not None:
            return self._threads.submit(self._request, task, key, session, elements)
        done: Future[bytes] = Future()
        try:
            done.set_result(_compute(self.group, task, key, session, elements))
        except ProtocolError as error:
            done.set_exception(error)
        return done

    def _request(self, task: int, key: bytes, session: bytes, elements: bytes) -> bytes:
        process = self._idle.get()
        try:
            assert process.stdin is not None and process.stdout is not None
            lengths = _REQUEST.pack(task, len(key), len(session), len(elements))
            process.stdin.write(lengths + key + session + elements)
            process.stdin.flush()
            ok, length = _REPLY.unpack(_read(process.stdout, _REPLY.size))
            reply = _read(process.stdout, length)
        except (OSError, EOFError, ValueError) as error:
            raise CeluError(
                "a worker process died, perhaps for lack of memory; start again to resume, "
                "with fewer threads in party.toml if it recurs"
            ) from error
        finally:
            self._idle.put(process)
        if not ok:
            raise ProtocolError(reply.decode())
        return reply


def run_worker(requests: IO[bytes], replies: IO[bytes], group: Group) -> None:
    """The main loop of a worker: answer requests until the input ends."""
    while head := requests.read(_REQUEST.size):
        task, *lengths = _REQUEST.unpack(head)
        key, session, elements = (_read(requests, length) for length in lengths)
        try:
            ok, reply = True, _compute(group, task, key, session, elements)
        except ProtocolError as error:
            ok, reply = False, str(error).encode()
        replies.write(_REPLY.pack(ok, len(reply)) + reply)
        replies.flush()


def _compute(group: Group, task: int, key: bytes, session: bytes, elements: bytes) -> bytes:
    if task == _BLIND:
        return group.blind(key, session, elements)
    return group.reblind(key, elements)


def _start(group: str) -> subprocess.Popen[bytes]:
    # Import celu from the same place as this process, in any working directory.
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-P", "-m", __name__, group],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


def _read(pipe: IO[bytes], length: int) -> bytes:
    data = pipe.read(length)
    if len(data) != length:
        raise EOFError
    return data


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except BrokenPipeError:  # the worker died before it read the request
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the party handles interrupts
    run_worker(sys.stdin.buffer, sys.stdout.buffer, GROUPS[sys.argv[1]])
