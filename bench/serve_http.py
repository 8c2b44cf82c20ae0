"""The HTTP part of `scripts/bench serve`: `celu serve` compared with its floor, in turns."""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report import BenchResult, Log
from bench.serve_files import GUEST, HOST, ROWS, START_S, make_files, serving_pair
from bench.serve_floor import floor

_DEADLINE_MS = 2000.0
_SHORT_DEADLINE_MS = 100.0
_INFER = "/v2/models/celu/infer"
_TURN = 25  # requests of one target before the next one's turn
_WARM_UP_TURNS = 2
_CLIENTS = 32


class HttpClient:
    """One connection that is held open; requests are prepared in advance."""

    def __init__(self, port: int, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), START_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._path = path
        self._row = 0

    def request(self) -> bytes:
        """Ask for the score of the next row; returns the body of the answer."""
        self._row = (self._row + 1) % ROWS
        tensor = {
            "name": "id",
            "shape": [1],
            "datatype": "BYTES",
            "data": [f"train-{self._row}"],
        }
        body = json.dumps({"inputs": [tensor]}).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        headers, _, answer = received.partition(b"\r\n\r\n")
        if not headers.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"expected an answer, got {received[:300]!r}")
        length = int(headers.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(answer) < length:
            answer += self._receive()
        return answer

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _receive(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data


def is_degraded(answer: bytes) -> bool:
    """Whether a host gave no Z for the row of an answer."""
    outputs: list[dict[str, Any]] = json.loads(answer)["outputs"]
    return any(output["name"] == "degraded" and output["data"] == [True] for output in outputs)


def wait_until_complete(port: int) -> None:
    """Wait until answers are no longer degraded."""
    client = HttpClient(port, _INFER)
    give_up_at = time.monotonic() + START_S
    while is_degraded(client.request()):
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"the host did not answer within {START_S:g} s")
        time.sleep(0.1)
    client.close()


def add_http(result: BenchResult, log: Log, turns: int) -> None:
    """Measure `celu serve` and its floor, and add the figures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_files(folder)
        keys = folder / "floor"
        with (
            floor(keys) as floor_port,
            serving_pair(folder, "asked", _DEADLINE_MS) as asked,
            serving_pair(folder, "pushed", _DEADLINE_MS) as pushed,
        ):
            for pair in (asked, pushed):
                wait_until_complete(pair.http_port)
            targets = {
                "serve": (asked.http_port, _INFER),
                "floor": (floor_port, "/call"),
                "pushed": (pushed.http_port, _INFER),
                "http": (floor_port, "/echo"),
            }
            seconds = latencies(targets, turns)
            for name, samples in seconds.items():
                row = {"request": name, "p50 us": 1e6 * _quantile(samples, 50)}
                row |= {"p99 us": 1e6 * _quantile(samples, 99), "samples": len(samples)}
                result.rows.append(row)
                log(f"{name}: {row['p50 us']:.0f} us at the median")
            rates = throughputs({name: targets[name] for name in ("serve", "floor")}, turns)
            log(f"requests per second with {_CLIENTS} clients: {rates}")
        with serving_pair(folder, "asked", _SHORT_DEADLINE_MS) as pair:
            wait_until_complete(pair.http_port)
            pair.pause_host()
            down = _samples(HttpClient(pair.http_port, _INFER), max(20, turns * 2), degraded=True)
    figures = result.figures
    figures["serve_p50_over_floor"] = _ratio(seconds, "serve", "floor", 50)
    figures["serve_p99_over_floor"] = _ratio(seconds, "serve", "floor", 99)
    figures["serve_rps_over_floor"] = rates["serve"] / rates["floor"]
    figures["pushed_p50_over_http"] = _ratio(seconds, "pushed", "http", 50)
    figures["host_down_p99_over_deadline"] = _quantile(down, 99) / (_SHORT_DEADLINE_MS / 1000)
    result.notes.append(
        f"serve: one row by its id, from {GUEST} with {HOST} asked over mutual TLS; pushed: Z was "
        "sent in advance, and the guest then scores all aligned rows in the background, so most of "
        "these requests look up a score and do not run the model. floor: the same HTTP server, "
        "which makes one bare unary call over mutual TLS; http: the same without the call. All in "
        "turns; *_rps_* with "
        f"{_CLIENTS} clients. host_down: the host is paused, deadline {_SHORT_DEADLINE_MS:g} ms."
    )


def latencies(targets: dict[str, tuple[int, str]], turns: int) -> dict[str, list[float]]:
    """Seconds of single requests of each target, measured in turns."""
    clients = {name: HttpClient(*where) for name, where in targets.items()}
    seconds: dict[str, list[float]] = {name: [] for name in targets}
    for turn in range(_WARM_UP_TURNS + turns):
        for name, client in clients.items():
            samples = _samples(client, _TURN)
            if turn >= _WARM_UP_TURNS:
                seconds[name] += samples
    for client in clients.values():
        client.close()
    return seconds


def _samples(client: HttpClient, count: int, *, degraded: bool = False) -> list[float]:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        answer = client.request()
        seconds.append(time.perf_counter() - started)
        if is_degraded(answer) != degraded:
            raise RuntimeError(f"expected degraded = {degraded}, got another answer")
    return seconds


def throughputs(targets: dict[str, tuple[int, str]], turns: int) -> dict[str, float]:
    """Requests per second of each target with many clients, measured in turns."""
    seconds = dict.fromkeys(targets, 0.0)
    count = 0
    for turn in range(1 + max(2, turns // 8)):
        for name, where in targets.items():
            spent = _burst(where, _TURN)
            if turn:
                seconds[name] += spent
        count += (turn > 0) * _TURN * _CLIENTS
    return {name: count / spent for name, spent in seconds.items()}


def _burst(where: tuple[int, str], count: int) -> float:
    """The seconds that all clients take for this number of requests each."""
    clients = [HttpClient(*where) for _ in range(_CLIENTS)]
    failures: list[BaseException] = []

    def run(client: HttpClient) -> None:
        try:
            _samples(client, count)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - started
    for client in clients:
        client.close()
    if failures:
        raise failures[0]
    return spent


def _quantile(samples: Sequence[float], percent: int) -> float:
    return statistics.quantiles(samples, n=100)[percent - 1]


def _ratio(seconds: dict[str, list[float]], name: str, base: str, percent: int) -> float:
    return _quantile(seconds[name], percent) / _quantile(seconds[base], percent)
