"""The floor of `celu serve`: the same HTTP server, which makes one bare gRPC call and no more.

`/call` makes a unary call over mutual TLS for each request, `/echo` none. Both parse the request's
JSON and answer with JSON of the size of an inference's.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from celu.config.serve import ServeSettings

_START_S = 300.0
_THREADS = 32
ANSWER = {
    "model_name": "celu",
    "model_version": "0" * 16,
    "parameters": {"model": "0" * 16},
    "outputs": [
        {"name": "score", "datatype": "FP64", "shape": [1], "data": [0.123456789012345]},
        {"name": "degraded", "datatype": "BOOL", "shape": [1], "data": [False]},
        {"name": "missing", "datatype": "BYTES", "shape": [1], "data": [""]},
    ],
}


class FloorApp:
    """An ASGI application that calls `call` on a thread for `/call`."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._threads = ThreadPoolExecutor(_THREADS)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Called by the server for each request."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        json.loads(body)
        if scope["path"] == "/call":
            await asyncio.get_running_loop().run_in_executor(self._threads, self._call)
        answer = json.dumps(ANSWER).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def _run_caller(folder: Path, port: int, pipe: Connection) -> None:
    """The process with the HTTP server, until the pipe is closed."""
    from bench.serve import unary_channel
    from celu.serving.http_server import HttpServer

    with unary_channel(folder, port) as call:
        app: Any = FloorApp(call)
        with HttpServer(ServeSettings(listen="127.0.0.1:0"), app) as server:
            pipe.send(int(server.url.rsplit(":", 1)[1]))
            pipe.poll(None)


def _run_called(folder: Path, pipe: Connection) -> None:
    """The process that answers the calls, until the pipe is closed."""
    from bench.serve import start_unary_server

    server, port = start_unary_server(folder)
    pipe.send(port)
    pipe.poll(None)
    server.stop(None)


@contextmanager
def floor(folder: Path) -> Iterator[int]:
    """Run both processes; yields the port of the HTTP server."""
    spawn = multiprocessing.get_context("spawn")
    processes, pipes = [], []

    def start(target: Callable[..., None], *arguments: Any) -> int:
        here, there = spawn.Pipe()
        process = spawn.Process(target=target, args=(folder, *arguments, there), daemon=True)
        process.start()
        there.close()
        processes.append(process)
        pipes.append(here)
        if not here.poll(_START_S):
            raise RuntimeError(f"the floor did not start within {_START_S:g} s")
        return int(here.recv())

    try:
        yield start(_run_caller, start(_run_called))
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5.0)
            process.kill()
