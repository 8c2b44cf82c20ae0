"""Starts `celu` in milliseconds, by forking a process that has imported it and torch.

Run as a script by `processes.ForkServer`, with the number of a socket. Each request is one JSON
object, and so is each answer. It never uses gRPC itself: gRPC's threads would be missing in the
processes forked after.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import socket
import sys
from typing import Any

import pandas  # noqa: F401 - pyarrow imports it where it is installed
import safetensors.torch  # noqa: F401 - imported for the forked processes
import torch
import torch._dynamo  # which an optimizer imports when it is made

import celu.cli.app
import celu.launch.aligning
import celu.launch.diagnosing
import celu.launch.predicting
import celu.launch.serving
import celu.launch.training
import celu.transport.websocket_carrier


def serve(requests: socket.socket) -> list[str]:
    """Serve requests until the socket is closed; in a forked process, return its arguments."""
    started: set[int] = set()
    while True:
        data, streams, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not data:
            break
        request = json.loads(data)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                requests.close()
                _prepare(request, *streams)
                return list(request["start"])
            for stream in streams:
                os.close(stream)
            started.add(pid)
            answer: dict[str, Any] = {"pid": pid}
        else:
            # An ended process stays a zombie until it is polled, so its pid is not reused.
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            started.discard(pid)
            answer = {"code": os.waitstatus_to_exitcode(status) if pid else None}
        requests.sendall(json.dumps(answer).encode())
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def _prepare(request: dict[str, Any], out: int, err: int) -> None:
    """Set the standard streams, the environment and the folder of a forked process."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    for stream in {out, err}:
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    faulthandler.register(signal.SIGUSR1)  # shows where a process hangs


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    gc.freeze()  # imported objects are never garbage in the forks
    sys.argv = ["celu", *serve(socket.socket(fileno=int(sys.argv[1])))]
    celu.cli.app.main()
