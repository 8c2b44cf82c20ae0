"""Starts parties in milliseconds, by forking a process that has imported celu and torch.

Run as a script by `parties.Server`, with one JSON object per line in each direction. It never uses
gRPC itself: gRPC's threads would be missing in the processes forked after.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
from typing import Any

import safetensors.torch  # noqa: F401 - imported for the forked processes
import torch
import torch._dynamo  # which an optimizer imports when it is made

import celu.cli.app
import celu.launch.training
import celu.transport.websocket_carrier


def serve() -> list[str]:
    """Serve requests until stdin ends; in a forked process, return its arguments."""
    started: set[int] = set()
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                _redirect_to(request["log"])
                return list(request["start"])
            started.add(pid)
            _answer({"pid": pid})
        else:
            # An ended process stays a zombie until it is polled, so its pid is not reused.
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            started.discard(pid)
            _answer({"code": os.waitstatus_to_exitcode(status) if pid else None})
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def _answer(fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _redirect_to(log: str) -> None:
    """Redirect standard streams to a file: the pipes belong to the server."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.register(signal.SIGUSR1)  # shows where a process hangs


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    gc.freeze()  # imported objects are never garbage in the forks
    sys.argv = ["celu", *serve()]
    celu.cli.app.main()
