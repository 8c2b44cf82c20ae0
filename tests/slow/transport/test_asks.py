"""Asks of many threads over every transport, also while connections break."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from celu.errors import PeerLost
from celu.transport.ask import Ask, serve_asks
from celu.transport.asker import Asker
from celu.transport.message import TensorSpec
from celu.transport.stream import StreamLink
from transport.conftest import Federate
from transport.transports import TRANSPORTS

WIDTH, CALLERS, ASKS = 300, 8, 40


def z_of(ask: Ask) -> torch.Tensor:
    return (1e4 * ask.slot + torch.tensor(ask.rows).float())[:, None].repeat(1, WIDTH)


@pytest.mark.parametrize(
    "federate", [(name, 1) for name in TRANSPORTS], indirect=True, ids=TRANSPORTS
)
@pytest.mark.parametrize("num_breaks", [0, 4])
def test_each_caller_gets_its_own_rows(federate: Federate, num_breaks: int) -> None:
    federation = federate(outage_s=600)
    ends = [federation.guest["airline"], federation.hosts["airline"]]
    guest, host = ends
    assert isinstance(guest, StreamLink) and isinstance(host, StreamLink)
    served: list[int] = []
    errors: list[Exception] = []

    def answer(ask: Ask) -> torch.Tensor:
        served.append(ask.number)
        return z_of(ask)

    serve_asks(host, answer, max_rows=64, on_error=errors.append, on_end=lambda problem: None)
    asker = Asker(guest, TensorSpec(64, WIDTH), max_rows=64)

    def call(caller: int) -> None:
        rng = random.Random(caller)
        for _ in range(ASKS):
            slot, rows = rng.randrange(2), [rng.randrange(9999) for _ in range(rng.randrange(1, 9))]
            expected = torch.tensor([1e4 * slot + row for row in rows])
            answer = asker.ask(slot, rows, 600.0)
            assert torch.equal(answer, expected[:, None].repeat(1, WIDTH))

    done = threading.Event()

    def nemesis() -> None:
        rng = random.Random(1)
        for _ in range(num_breaks):
            if done.wait(rng.uniform(0.0, 0.1)):
                return
            connection = rng.choice((guest, host))._connections.current
            assert connection is not None
            connection.abort(PeerLost("aborted by the test"))

    breaking = threading.Thread(target=nemesis)
    breaking.start()
    with ThreadPoolExecutor(CALLERS) as pool:
        for future in [pool.submit(call, caller) for caller in range(CALLERS)]:
            future.result(600)
    done.set()
    breaking.join(600)
    assert sorted(served) == list(range(len(served))), "each ask is served once"
    assert not errors
