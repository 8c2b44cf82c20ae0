"""Starts parties as processes of their own, in milliseconds: it has celu and torch imported, and
forks. Run as a script by `parties.Server`, one JSON object a line each way.

It never uses gRPC itself: its threads would be missing in whoever is forked after.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
from typing import Any

import safetensors.torch  # noqa: F401 - imported for whoever is forked
import torch
import torch._dynamo  # which an optimizer imports when it is made

import celu.cli.app
import celu.launch.training
import celu.transport.websocket_carrier


def serve() -> list[str]:
    """Do what is asked until there is nothing more; in a party's process, its arguments."""
    started: set[int] = set()
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        if "start" in asked:
            pid = os.fork()
            if pid == 0:
                _speak_to(asked["log"])
                return list(asked["start"])
            started.add(pid)
            _answer({"pid": pid})
        else:
            # A process that ended is kept by its number until somebody asks: no other gets it.
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            started.discard(pid)
            _answer({"code": os.waitstatus_to_exitcode(status) if pid else None})
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def _answer(fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _speak_to(log: str) -> None:
    """A file in place of the pipes, which are the server's."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.register(signal.SIGUSR1)  # where it hangs, for who waits in vain


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    gc.freeze()  # what is imported here is no garbage of theirs
    sys.argv = ["celu", *serve()]
    celu.cli.app.main()
