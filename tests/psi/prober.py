"""A host that takes our answers and dies, and claims to have none of them when it starts again.

python -m psi.prober PORT FIRST_ID      prints "answered" or "refused", and dies
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace

import torch

from celu.errors import PeerFailed, PeerLost
from celu.psi.exchange import specs
from celu.psi.group import GROUPS
from celu.psi.protocol import CHUNK_ROWS
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.link import Link, run_blocking
from celu.transport.message import Kind, Message
from psi.parties import tags_of

GROUP = GROUPS["P-256"]
KEY = bytes(31) + b"\x07"


async def probe(
    link: Link, numbers: Iterable[int], chunk_rows: int, *, resume: bool
) -> tuple[str | None, bytes | None]:
    """The session that we were offered, and the answer to these ids if there was one.

    They must fit in a chunk. With `resume`, continue the offered session without any progress.
    """
    ids = tags_of(numbers).tobytes()
    hello = await link.receive()
    body = dict(hello.body or {})
    offered, rows = body["session"], len(ids) // 16
    changed = {"name": "host", "rows": rows, "session": offered if resume else None}
    await link.send(replace(hello, body={**body, **changed, "own": 0, "peers": 0}))
    link.allow(specs(chunk_rows, GROUP.element_bytes))
    await link.send(await link.receive())  # READY
    assert (await link.receive()).kind is Kind.BLINDED
    elements = bytearray(GROUP.blind(KEY, b"session", ids))
    tensor = torch.frombuffer(elements, dtype=torch.uint8).reshape(rows, -1)
    await link.send(Message(Kind.BLINDED, tensor=tensor))
    try:
        answer = await link.receive()
    except (PeerFailed, PeerLost):
        return offered, None
    if answer.kind is not Kind.REBLINDED or answer.tensor is None:
        return offered, None
    return offered, answer.tensor.numpy().tobytes()


def main(port: int, first_id: int) -> None:
    endpoint = Endpoint(name="host", connect={"guest": Route(f"127.0.0.1:{port}")})
    with open_links(endpoint) as links:
        ids = range(first_id, first_id + 8)
        _, answer = run_blocking(probe(links["guest"], ids, CHUNK_ROWS, resume=True))
        sys.stdout.write("answered" if answer else "refused")
        sys.stdout.flush()
        os._exit(9)  # like SIGKILL: nothing is reported or closed


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
