"""Processes that do the multiplications, for one process uses one core.

A worker is this module run by itself: it reads a request from its standard input, writes the reply
to its standard output, and ends when its input does, so it never outlives its party. Requests and
replies are plain bytes with their lengths before them, and keys travel in no other way.

    request   B task, I I I lengths    key, session, elements
    reply     B whether it went well, I length    elements, or why not

Nothing here imports torch, so that a worker is small and quick to start.
"""

from __future__ import annotations

import os
import queue
import signal
import struct
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from celu.errors import CeluError, ProtocolError
from celu.psi.group import GROUPS, ID_BYTES, Group

_REQUEST = struct.Struct("<BIII")
_REPLY = struct.Struct("<BI")
_BLIND, _REBLIND = 0, 1
_STOP_S = 5.0


class Workers:
    """Blinds in `num` processes; with none, at once and in this one. Close it, or use `with`.

    What fails in a worker is raised by the future: ProtocolError for what is no element of the
    group, CeluError where the worker is gone.
    """

    def __init__(self, num: int = 0, group: str = "P-256") -> None:
        self.group: Group = GROUPS[group]
        self.multiplications = 0  # that were asked for
        self._processes = [_start(group) for _ in range(num)]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(num, "celu-psi") if num else None

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
        """End the workers; what they have not begun is dropped. May be called twice."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # it holds nothing that is not asked for again
            process.wait(_STOP_S)
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                _close(pipe)

    def _submit(self, task: int, key: bytes, session: bytes, elements: bytes) -> Future[bytes]:
        if self._threads is not None:
            return self._threads.submit(self._ask, task, key, session, elements)
        done: Future[bytes] = Future()
        try:
            done.set_result(_perform(self.group, task, key, session, elements))
        except ProtocolError as error:
            done.set_exception(error)
        return done

    def _ask(self, task: int, key: bytes, session: bytes, elements: bytes) -> bytes:
        process = self._idle.get()
        try:
            assert process.stdin is not None and process.stdout is not None
            lengths = _REQUEST.pack(task, len(key), len(session), len(elements))
            process.stdin.write(lengths + key + session + elements)
            process.stdin.flush()
            well, length = _REPLY.unpack(_read(process.stdout, _REPLY.size))
            reply = _read(process.stdout, length)
        except (OSError, EOFError, ValueError) as error:
            raise CeluError(
                "a worker process ended; is there memory for one on each core? "
                "Start again to go on from here"
            ) from error
        finally:
            self._idle.put(process)
        if not well:
            raise ProtocolError(reply.decode())
        return reply


def serve(requests: IO[bytes], replies: IO[bytes], group: Group) -> None:
    """What a worker does: answer until there are no more requests."""
    while head := requests.read(_REQUEST.size):
        task, *lengths = _REQUEST.unpack(head)
        key, session, elements = (_read(requests, length) for length in lengths)
        try:
            well, reply = True, _perform(group, task, key, session, elements)
        except ProtocolError as error:
            well, reply = False, str(error).encode()
        replies.write(_REPLY.pack(well, len(reply)) + reply)
        replies.flush()


def _perform(group: Group, task: int, key: bytes, session: bytes, elements: bytes) -> bytes:
    if task == _BLIND:
        return group.blind(key, session, elements)
    return group.reblind(key, elements)


def _start(group: str) -> subprocess.Popen[bytes]:
    # Found where this one was found, whatever folder the party was started in.
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(  # noqa: S603 - ourselves
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
        except BrokenPipeError:  # a request that the worker did not live to read
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the party's to handle
    serve(sys.stdin.buffer, sys.stdout.buffer, GROUPS[sys.argv[1]])
