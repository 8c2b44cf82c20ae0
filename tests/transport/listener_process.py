"""A process that listens for one peer, and its memory: for tests that attack its port."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celu.transport.carrier import Route
from celu.transport.connect import Endpoint
from celu.transport.preflight import Gateway

LISTEN = """
import sys
from pathlib import Path
from celu.transport.carrier import Admission
from celu.transport.connect import find_carrier
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials

certificate, key, ca = map(Path, sys.argv[1:4])
admission = Admission(
    {"bank": StreamLink("bank", deadline_s=600)},
    Credentials.read(certificate, key, {"bank": ca}),
    behind_gateway=sys.argv[4] == "gateway",
)
listener = find_carrier("grpc").listen("127.0.0.1:0", admission)
print(listener.port, flush=True)
sys.stdin.read()
listener.stop()
"""


class ListenerProcess:
    """A process that listens, and its largest resident memory while `watched`."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LISTEN, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        seen, over = [self.resident_mib()], threading.Event()

        def watch() -> None:
            while not over.wait(0.05):
                seen.append(self.resident_mib())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join(600)

    def stop(self) -> int:
        try:
            self._process.communicate(timeout=600)  # closes its input, which ends it
        finally:
            self._process.kill()
        return self._process.returncode


def listen(companies: dict[str, Any], where: str) -> ListenerProcess:
    """The guest, which expects the bank; `where` is "direct" or "gateway"."""
    guest, bank = companies["guest"], companies["bank"]
    return ListenerProcess(guest.certificate, guest.key, bank.ca, where)


def peer_context(companies: dict[str, Any], where: str) -> ssl.SSLContext | None:
    """The TLS of a client with the bank's certificate; none for the port of a gateway."""
    if where == "gateway":
        return None
    guest, bank = companies["guest"], companies["bank"]
    context = ssl.create_default_context(cafile=str(guest.ca))
    context.load_cert_chain(bank.certificate, bank.key)
    context.set_alpn_protocols(["h2"])
    return context


def honest_peer(companies: dict[str, Any], where: str, port: int) -> Endpoint:
    """The bank, which connects to the guest."""
    gateway = Gateway("localhost") if where == "gateway" else None
    return Endpoint(
        "bank",
        connect={"guest": Route(f"127.0.0.1:{port}", gateway=gateway)},
        keys=companies["bank"].keys(companies["guest"]),
        connect_s=600,
    )
