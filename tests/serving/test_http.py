"""The HTTP side of a serving guest: the protocol's routes and errors, tokens, TLS and limits."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celu import http_limits
from celu.certs import make_authority, make_party
from celu.config.reading import validate
from celu.config.serve import ServeSettings
from celu.errors import CertificateError, ConfigError, RequestError
from celu.serving.batching import Batcher, Job, Outcome
from celu.serving.http import Health, HttpApp
from celu.serving.http_server import HttpServer, read_token
from celu.serving.inference_protocol import InferRequest, parse_request
from celu.serving.serve_metrics import ServeMetrics
from serving.guests import COMMON, Federated, federated

WAIT_S = 600.0
TOKEN = "0123456789abcdef0123"
INFER = "/v2/models/celu/infer"


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Federated:
    return federated(tmp_path_factory.mktemp("parties"), loss="multiclass")


def settings_of(**given: Any) -> ServeSettings:
    # The deadline is no limit here: hosts are asked by a call.
    return ServeSettings(**{"listen": "127.0.0.1:0", "deadline_ms": 60000.0, **given})


@contextmanager
def serving(parties: Federated, work: Any = None, **given: Any) -> Iterator[Client]:
    settings = settings_of(**given)
    health = Health(lambda: parties.served, lambda: True, lambda: False)
    with Batcher(work or parties.inference.serve, max_rows=100, max_jobs=100) as batcher:
        token = read_token(settings.token_file)
        metrics = ServeMetrics(lambda: iter([("celu_serve_host_up", {"host": "host"}, 1.0)]))
        app = HttpApp(settings, token, batcher, health, metrics)
        with HttpServer(settings, app) as server:
            yield Client(int(server.url.rsplit(":", 1)[1]))


class Client:
    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.context = context

    def connect(self) -> http.client.HTTPConnection:
        if self.context is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def call(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        connection = self.connect()
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(content) if is_json else content.decode()


def body(ids: list[str], **more: Any) -> bytes:
    tensor = {"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}
    return json.dumps({"inputs": [tensor], **more}).encode()


def test_the_routes_of_the_protocol(parties: Federated) -> None:
    name = parties.served.name
    with serving(parties) as client:
        assert client.call("GET", "/v2/health/live") == (200, {"live": True})
        assert client.call("GET", "/v2/health/ready") == (200, {"ready": True})
        assert client.call("GET", "/v2")[1]["name"] == "celu"
        status, found = client.call("GET", "/v2/models/celu")
        assert status == 200 and found["versions"] == [name]
        assert found["outputs"][0] == {"name": "score", "datatype": "FP64", "shape": [-1, 3]}
        assert {"name": "n0", "datatype": "FP64", "shape": [-1]} in found["inputs"]
        assert {"name": "c0", "datatype": "BYTES", "shape": [-1]} in found["inputs"]
        assert client.call("GET", f"/v2/models/celu/versions/{name}") == (200, found)
        assert client.call("GET", "/v2/models/celu/ready")[0] == 503  # as `is_complete` says
        status, answer = client.call("POST", INFER, body(COMMON[:2], id="mine"))
        assert status == 200 and answer["id"] == "mine"
        assert answer["parameters"] == {"model": name}
        assert answer["outputs"][0]["shape"] == [2, 3] and len(answer["outputs"][0]["data"]) == 6
        versioned = f"/v2/models/celu/versions/{name}/infer"
        wanted = body(COMMON[:2], outputs=[{"name": "score"}])
        status, fewer = client.call("POST", versioned, wanted)
        assert status == 200 and fewer["outputs"] == answer["outputs"][:1]
        status, metrics = client.call("GET", "/metrics")
        assert status == 200 and 'celu_serve_requests_total{code="200"} 2' in metrics
        assert "celu_serve_rows_total 4" in metrics
        assert 'celu_serve_host_up{host="host"} 1.0' in metrics


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/celu/versions/0", 404),
        ("GET", "/v2/models/celu/more", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v2/models/celu/versions/0/infer", 404),
        ("POST", "/infer", 404),
        ("GET", INFER, 405),
        ("POST", "/v2/models/celu", 405),
        ("DELETE", "/v2", 405),
    ],
)
def test_other_paths_and_methods_are_errors_of_the_protocol(
    parties: Federated, method: str, path: str, status: int
) -> None:
    with serving(parties) as client:
        got, answer = client.call(method, path, body(COMMON[:1]) if method == "POST" else None)
    assert got == status and list(answer) == ["error"]


TENSOR = {"name": "id", "shape": [1], "datatype": "BYTES", "data": ["x"]}
BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"[" * 100_000,
    b"\xff\xfe",
    b'{"inputs": 1}',
    b'{"inputs": []}',
    b'{"inputs": [1]}',
    json.dumps({"inputs": [TENSOR, TENSOR]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "shape": [2]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "shape": [0], "data": []}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "shape": [-1]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "shape": [True]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "shape": [1, 2]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "shape": "1"}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "data": "x"}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "data": [["x", "y"]]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "data": [None]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "data": [5]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "datatype": "FP64", "data": [5.0]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "datatype": "OBJECT"}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "data": ["\ud800"]}]}).encode(),
    json.dumps({"inputs": [{**TENSOR, "name": 5}]}).encode(),
    json.dumps({"inputs": [TENSOR], "id": 5}).encode(),
    json.dumps({"inputs": [TENSOR], "id": "\udc00"}).encode(),
    json.dumps({"inputs": [TENSOR], "outputs": 5}).encode(),
    json.dumps({"inputs": [TENSOR], "outputs": [{"name": "weights"}]}).encode(),
    json.dumps({"inputs": [TENSOR], "outputs": [{"name": ["score"]}]}).encode(),
    json.dumps({"inputs": [TENSOR, {**TENSOR, "name": "n0"}]}).encode(),
    b'{"inputs": [{"name": "id", "shape": [1], "datatype": "BYTES", "data": ["x"]},'
    b'{"name": "n0", "shape": [1], "datatype": "FP64", "data": [NaN]}]}',
    b'{"inputs": [{"name": "id", "shape": [' + b"9" * 5000 + b'], "datatype": "BYTES"}]}',
]


def test_hostile_bodies_are_refused_and_the_server_answers_the_next(parties: Federated) -> None:
    with serving(parties) as client:
        for bad in BAD_BODIES:
            status, answer = client.call("POST", INFER, bad)
            assert status in (400, 413) and list(answer) == ["error"], bad[:200]
        assert client.call("POST", INFER, body(COMMON[:1]))[0] == 200


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_raise_anything_but_a_request_error(data: bytes) -> None:
    try:
        assert isinstance(parse_request(data, 10), InferRequest)
    except RequestError as error:
        assert error.status in (400, 413)


def test_rows_and_bytes_of_a_request_are_bounded(parties: Federated) -> None:
    with serving(parties, max_rows=3, max_body_mb=1) as client:
        assert client.call("POST", INFER, body(COMMON[:3]))[0] == 200
        assert client.call("POST", INFER, body(COMMON[:4]))[0] == 413
        with socket.create_connection(("127.0.0.1", client.port), WAIT_S) as raw:
            raw.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n".encode())
            raw.sendall(b"Content-Length: 99999999999\r\n\r\n")  # refused before it arrives
            assert raw.recv(16).startswith(b"HTTP/1.1 413")
        with socket.create_connection(("127.0.0.1", client.port), WAIT_S) as raw:
            raw.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n".encode())
            raw.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
            received = b""
            with suppress(ConnectionError):  # it may be cut off before the answer is read
                for _ in range(40):
                    raw.sendall(chunk)
                received = raw.recv(12)
            assert received in (b"", b"HTTP/1.1 413")


def test_requests_at_the_same_time_are_bounded(parties: Federated) -> None:
    may_work, is_working = threading.Event(), threading.Semaphore(0)

    def work(jobs: list[Job]) -> list[Outcome]:
        is_working.release()
        assert may_work.wait(WAIT_S)
        return parties.inference.serve(jobs)

    statuses = []
    with serving(parties, work, max_requests=2) as client:
        threads = [
            threading.Thread(
                target=lambda: statuses.append(client.call("POST", INFER, body(COMMON[:1]))[0])
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
            assert is_working.acquire(timeout=WAIT_S)
        status, answer = client.call("POST", INFER, body(COMMON[:1]))
        assert status == 429 and "retry" in answer["error"]
        assert client.call("GET", "/v2/health/live")[0] == 200
        may_work.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert statuses == [200, 200]


def test_a_stopping_server_answers_the_requests_in_progress(parties: Federated) -> None:
    may_work, is_working = threading.Event(), threading.Event()

    def work(jobs: list[Job]) -> list[Outcome]:
        is_working.set()
        assert may_work.wait(WAIT_S)
        return parties.inference.serve(jobs)

    statuses: list[int] = []
    with serving(parties, work) as client:
        thread = threading.Thread(
            target=lambda: statuses.append(client.call("POST", INFER, body(COMMON[:1]))[0])
        )
        thread.start()
        assert is_working.wait(WAIT_S)
        threading.Timer(0.5, may_work.set).start()
    thread.join(WAIT_S)
    assert statuses == [200]


def test_headers_that_arrive_byte_by_byte_are_cut_off(
    parties: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "REQUEST_S", 0.5)
    with (
        serving(parties) as client,
        socket.create_connection(("127.0.0.1", client.port), WAIT_S) as raw,
    ):
        raw.sendall(b"GET /v2 HTTP/1.1\r\nX: ")
        assert raw.recv(16) == b""


def test_a_token_is_needed_for_everything_but_health(parties: Federated, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with serving(parties, token_file=tmp_path / "token") as client:
        assert client.call("GET", "/v2/health/live")[0] == 200
        for path in ("/v2", "/metrics", "/v2/models/celu"):
            assert client.call("GET", path)[0] == 401
            assert client.call("GET", path, Authorization=f"Bearer {TOKEN}")[0] == 200
        for given in (f"Bearer {TOKEN}x", TOKEN, "Bearer ", f"bearer {TOKEN}", "Basic é"):
            status, answer = client.call("POST", INFER, body(COMMON[:1]), Authorization=given)
            assert status == 401 and TOKEN not in answer["error"], given
        # A page of a browser has no token, so any Host is fine.
        status, _ = client.call(
            "POST", INFER, body(COMMON[:1]), Authorization=f"Bearer {TOKEN}", Host="serve.example"
        )
        assert status == 200


def test_web_pages_cannot_use_a_server_without_a_token(parties: Federated) -> None:
    with serving(parties) as client:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert client.call("POST", INFER, body(COMMON[:1]), **headers)[0] == 403
        assert client.call("POST", INFER, body(COMMON[:1]), Host="localhost:1")[0] == 200


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("localhost", "client", "stranger"):
        make_authority(folder / name, name)
        make_party(folder / name, name)
    return folder


def client_context(keys: Path, name: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=keys / "localhost" / "ca.pem")
    context.check_hostname = False
    if name is not None:
        context.load_cert_chain(keys / name / f"{name}.pem", keys / name / f"{name}.key")
    return context


def test_client_certificates_are_checked(parties: Federated, keys: Path) -> None:
    own = keys / "localhost"
    tls = {"certificate": own / "localhost.pem", "key": own / "localhost.key"}
    with serving(parties, **tls, ca=keys / "client" / "ca.pem") as client:
        client.context = client_context(keys, "client")
        assert client.call("POST", INFER, body(COMMON[:1]))[0] == 200
        for name in (None, "stranger"):
            client.context = client_context(keys, name)
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                client.call("GET", "/v2/health/live")
        old = client_context(keys, "client")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        client.context = old
        with pytest.raises((ssl.SSLError, ConnectionError)):
            client.call("GET", "/v2/health/live")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"listen": "0.0.0.0:80"}, "other machines can reach"),
        ({"listen": "[::]:80"}, "other machines can reach"),
        ({"listen": "serve.example:80"}, "other machines can reach"),
        ({"ca": "ca.pem"}, "client certificates need HTTPS"),
        ({"certificate": "x.pem"}, "expected both or none"),
        ({"deadline_ms": 0.0}, "deadline_ms"),
        ({"lookup": "no colon"}, "lookup"),
    ],
)
def test_settings_that_expose_the_server_or_do_not_fit_are_refused(
    given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        validate(ServeSettings, given, Path("party.toml"))


def test_an_exposed_server_starts_with_a_token_or_client_certificates() -> None:
    for more in ({"token_file": "t"}, {"ca": "c", "certificate": "a", "key": "b"}):
        validate(ServeSettings, {"listen": "0.0.0.0:80", **more}, Path("party.toml"))


@pytest.mark.parametrize("text", ["", "short", "has white space in the token", "é" * 20])
def test_a_weak_or_unreadable_token_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match="openssl rand"):
        read_token(tmp_path / "token")
    with pytest.raises(ConfigError, match="No such file"):
        read_token(tmp_path / "absent")


def test_unreadable_keys_and_addresses_are_errors(parties: Federated, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no key")
    with (
        pytest.raises(CertificateError, match=r"serve\.certificate"),
        serving(parties, certificate=tmp_path / "x", key=tmp_path / "x"),
    ):
        pass
    with (
        serving(parties) as client,
        pytest.raises(ConfigError, match="cannot listen"),
        serving(parties, listen=f"127.0.0.1:{client.port}"),
    ):
        pass
