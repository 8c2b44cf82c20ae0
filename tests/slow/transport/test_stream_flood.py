"""A client that opens streams and never finishes them costs a listener bounded memory."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.http2_flood import flood_streams
from celu.config.party import MAX_DIRECT_STRIPES, MAX_STRIPES

MAX_GROWTH_MIB = 256  # without a bound it grows by more, and with every second
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


class Process:
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


@pytest.mark.parametrize(
    ("where", "connections", "streams"),
    [("gateway", 8, 500), ("direct", 2, 65)],
    ids=["a stranger behind a gateway", "a peer"],
)
def test_streams_that_are_never_finished_cost_bounded_memory(
    companies: dict[str, Any], where: str, connections: int, streams: int
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    listener = Process(guest.certificate, guest.key, bank.ca, where)
    context, stripes = None, MAX_STRIPES
    if where == "direct":
        stripes = MAX_DIRECT_STRIPES
        context = ssl.create_default_context(cafile=str(guest.ca))
        context.load_cert_chain(bank.certificate, bank.key)
        context.set_alpn_protocols(["h2"])
    try:
        with listener.watched() as seen:
            flood = flood_streams(
                listener.port,
                "bank",
                context,
                10,
                connections=connections,
                streams=streams,
                stripes=stripes,
            )
        assert flood.opened > 0  # how many are refused depends on the speed of the machine
        assert max(seen) - seen[0] < MAX_GROWTH_MIB
    finally:
        code = listener.stop()
    assert code == 0, "a flood does not keep a party from ending"
