"""`scripts/bench serve`: an ask over a link and a request over HTTP, compared with bare ones.

A guest process asks a host process over the link between them; in turns, it makes unary calls of
the same sizes to a synchronous gRPC server in that host process. Both use mutual TLS on the
loopback. Other work of the machine slows down both, so their ratio is the figure.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from bench.report import BenchResult, Log
from bench.serve_http import add_http
from celu.certs import make_authority, make_party
from celu.transport import grpc_carrier  # before grpc: it sets gRPC's environment
from celu.transport.ask import serve_asks
from celu.transport.asker import Asker
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.tls import Credentials
from celu.transport.wire import HEADER

GUEST, HOST = "guest", "host"
ASK_BYTES, ANSWER_WIDTH = 24, 64  # model slot, time left and one row; one row of Z
TURN = 50  # asks or calls in a row before the other side's turn
_WARM_UP_TURNS = 4
_START_S = 300.0
_METHOD = "/bench.Unary/Ask"


def bench_serve(log: Log, turns: int = 40) -> BenchResult:
    """Measure the parts of online serving."""
    torch.set_num_threads(1)
    result = BenchResult("serve", [1])
    seconds = ask_and_unary_seconds(turns)
    for name, samples in seconds.items():
        cuts = statistics.quantiles(samples, n=100)
        row = {"round trip": name, "median us": 1e6 * statistics.median(samples)}
        result.rows.append(row | {"p95 us": 1e6 * cuts[94], "samples": len(samples)})
        log(f"{name}: {row['median us']:.0f} us")
    ask, unary = (statistics.median(seconds[name]) for name in ("ask", "unary call"))
    result.figures["ask_over_unary"] = ask / unary
    result.notes.append(
        f"An ask of {ASK_BYTES} bytes and an answer of 1 x {ANSWER_WIDTH} float32, each with a "
        f"header of {HEADER.size} bytes; the unary call carries as many bytes. Two processes on "
        f"the loopback with mutual TLS, in turns of {TURN}. ask_over_unary compares the medians."
    )
    add_http(result, log, turns)
    return result


def ask_and_unary_seconds(turns: int) -> dict[str, list[float]]:
    """The seconds of each ask and of each unary call, measured in turns."""
    seconds: dict[str, list[float]] = {"ask": [], "unary call": []}
    with tempfile.TemporaryDirectory() as scratch, _host_process(Path(scratch)) as (ask, call):
        for turn in range(_WARM_UP_TURNS + turns):
            for name, measured in (("ask", ask), ("unary call", call)):
                samples = [_timed(measured) for _ in range(TURN)]
                if turn >= _WARM_UP_TURNS:
                    seconds[name] += samples
    return seconds


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def _host_process(folder: Path) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Start a host; yields an ask over the link to it, and a unary call to its server."""
    make_all_keys(folder)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    hosts = []

    def start_host(port: int) -> None:
        hosts.append(spawn.Process(target=_run_host, args=(folder, port, there), daemon=True))
        hosts[0].start()

    endpoint = Endpoint(
        GUEST, "127.0.0.1:0", (HOST,), keys=_keys(folder, GUEST, HOST), connect_s=_START_S
    )
    try:
        with open_links(endpoint, start_host) as links:
            asker = Asker(links[HOST], TensorSpec(1, ANSWER_WIDTH), max_rows=1)
            if not here.poll(_START_S):
                raise RuntimeError(f"the host process did not start within {_START_S:g} s")
            with _channel(here.recv(), endpoint) as channel:
                unary, request = channel.unary_unary(_METHOD), bytes(HEADER.size + ASK_BYTES)

                def ask() -> None:
                    asker.ask(0, [0], _START_S)

                yield ask, lambda: unary(request, timeout=_START_S)
            links[HOST].post(Message(Kind.GOODBYE))
    finally:
        for process in hosts:
            process.join(_START_S)
            process.kill()


def make_all_keys(folder: Path) -> None:
    """Make the keys of both sides."""
    for name in (GUEST, HOST):
        (folder / name).mkdir(parents=True)
        make_authority(folder / name, name)
        make_party(folder / name, name)


@contextmanager
def unary_channel(folder: Path, port: int) -> Iterator[Callable[[], Any]]:
    """A unary call to a server of `start_unary_server`, as the guest."""
    endpoint = Endpoint(GUEST, keys=_keys(folder, GUEST, HOST))
    with _channel(port, endpoint) as channel:
        unary, request = channel.unary_unary(_METHOD), bytes(HEADER.size + ASK_BYTES)
        yield lambda: unary(request, timeout=_START_S)


def start_unary_server(folder: Path) -> tuple[Any, int]:
    """Make keys and start the server of unary calls, as the host; returns it and its port."""
    make_all_keys(folder)
    return _unary_server(Credentials.read(*_keys(folder, HOST, GUEST)))


def _keys(folder: Path, name: str, peer: str) -> tuple[Path, Path, dict[str, Path]]:
    own = folder / name
    return own / f"{name}.pem", own / f"{name}.key", {peer: folder / peer / "ca.pem"}


def _channel(port: int, endpoint: Endpoint) -> Any:
    """A channel to the unary server, with the credentials of a link."""
    assert endpoint.keys is not None
    route = Route(f"127.0.0.1:{port}")
    return grpc_carrier._channel(route, HOST, Credentials.read(*endpoint.keys))


def _run_host(folder: Path, port: int, pipe: Connection) -> None:
    """The host process: answers unary calls and asks until the link is over."""
    torch.set_num_threads(1)
    keys = _keys(folder, HOST, GUEST)
    server, unary_port = _unary_server(Credentials.read(*keys))
    z_BD = torch.zeros(1, ANSWER_WIDTH)
    endpoint = Endpoint(
        HOST, connect={GUEST: Route(f"127.0.0.1:{port}")}, keys=keys, connect_s=_START_S
    )
    ended = threading.Event()
    with open_links(endpoint) as links:
        serve_asks(
            links[GUEST],
            lambda ask: z_BD,
            max_rows=1,
            on_error=lambda error: None,
            on_end=lambda problem: ended.set(),
        )
        pipe.send(unary_port)
        ended.wait()
    server.stop(None)


def _unary_server(credentials: Credentials) -> tuple[Any, int]:
    """A server whose answers have the size of an answer over the link."""
    import grpc

    response = bytes(HEADER.size + ANSWER_WIDTH * torch.float32.itemsize)

    def answer(request: bytes, context: Any) -> bytes:
        return response

    server: Any = grpc.server(ThreadPoolExecutor(4))
    service, method = _METHOD.strip("/").split("/")
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    secure = grpc.ssl_server_credentials(
        [(credentials.key, credentials.certificate)],
        root_certificates=credentials.authorities[GUEST],
        require_client_auth=True,
    )
    port = server.add_secure_port("127.0.0.1:0", secure)
    server.start()
    return server, int(port)
