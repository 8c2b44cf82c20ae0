"""What crosses the link while parties serve: recorded on a plain link between real processes."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from celu.data.store import PARTS, open_store
from celu.testing import free_port
from slow.serving.served import COMMON, GUEST, HOST, Served

IDS = [f"shared-{n}" for n in range(COMMON)]


@contextmanager
def recorder(port: int) -> Iterator[tuple[int, list[bytes]]]:
    """A proxy to a port, and the bytes that passed it in either direction."""
    recorded: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def forward(client: socket.socket) -> None:
        # A party that has seen which carrier its peer uses closes that connection with a reset.
        target = socket.create_connection(("127.0.0.1", port))
        with client, target, suppress(ConnectionResetError):
            while not over.is_set():
                for one in select.select([client, target], [], [], 0.2)[0]:
                    data = one.recv(65536)
                    if not data:
                        return
                    recorded.append(data)
                    (target if one is client else client).sendall(data)

    def accept() -> None:
        while not over.is_set():
            if select.select([server], [], [], 0.2)[0]:
                threading.Thread(target=forward, args=(server.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], recorded
    finally:
        over.set()
        thread.join()
        server.close()


@pytest.mark.parametrize(
    ("contract", "crosses"),
    [("", False), ('mode = "pushed"\n', False), ('asks = "tags"\n', True)],
    ids=["numbers", "pushed", "tags"],
)
def test_no_id_crosses_and_tags_only_where_the_contract_says_so(
    served: Served, contract: str, crosses: bool
) -> None:
    serving = served.folder / "serving.toml"
    serving.write_text(serving.read_text() + contract)
    served.insecure = True
    port = served.port = free_port()
    with recorder(port) as (proxy, recorded):
        served.start(GUEST)
        served.port = proxy
        served.start(HOST)
        served.wait_until_complete()
        assert not any(served.infer(IDS).degraded)
        for row in IDS[:20]:
            served.infer([row])
    wire = b"".join(recorded)
    assert len(wire) > 5_000 and b"ANNOUNCE" not in wire and b"wanted" in wire
    assert b"shared-" not in wire and b"-only-" not in wire
    store = open_store(served.folder / GUEST / "store")
    tags = np.concatenate([store.tags(part) for part in PARTS])
    # Six bytes of a tag stay together in an ask by tags; eight random ones never occur by chance.
    found = sum(bytes(tag[:6]) in wire for tag in tags)
    assert (found >= COMMON) if crosses else (found == 0)
    name = served.model("1").encode()
    assert name in wire  # the recording works
