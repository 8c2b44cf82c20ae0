"""The dashboard's server over real sockets: which requests it answers, and which it refuses."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from celu.dashboard.server import Dashboard
from celu.errors import ConfigError
from celu.http_limits import AllowedHosts
from record.folders import events, round_event, write_run

DEADLINE_S = 600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", events(10))


@pytest.fixture
def served(folder: Path) -> Iterator[Dashboard]:
    with Dashboard([folder]) as dashboard:
        yield dashboard


def port_of(served: Dashboard) -> int:
    return int(served.url.rsplit(":", 1)[1].strip("/"))


def request(
    served: Dashboard, path: str = "/", method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port_of(served), timeout=DEADLINE_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read(1 << 20)
    finally:
        connection.close()


class Stream:
    """The server-sent events of one connection."""

    def __init__(self, served: Dashboard) -> None:
        self._connection = HTTPConnection("127.0.0.1", port_of(served), timeout=DEADLINE_S)
        self._connection.request("GET", "/events")
        self._answer = self._connection.getresponse()
        assert self._answer.headers["Content-Type"].startswith("text/event-stream")

    def next(self) -> tuple[str, Any]:
        name, data = "", ""
        while line := self._answer.readline(1 << 20).decode().rstrip("\n"):
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = value
        return name, json.loads(data) if data else None

    def close(self) -> None:
        self._connection.close()


def test_the_page_links_only_to_this_servers_files(served: Dashboard) -> None:
    answer, page = request(served)
    assert answer.status == 200 and b"<h1>Runs</h1>" in page
    names = [part.split(b'"')[0].decode() for part in page.split(b'="/')[1:]]
    assert len(names) == 10
    for name in names:
        found, text = request(served, f"/{name}")
        assert found.status == 200 and text, name


def test_every_response_has_the_security_headers(served: Dashboard) -> None:
    for path, host in (("/", "localhost"), ("/nothing", "localhost"), ("/", "evil.example")):
        headers = request(served, path, Host=host)[0].headers
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers and "Server" not in headers


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "192.168.0.9", "localhost.evil", "[::2]", "a b"],
)
def test_a_host_that_is_not_loopback_is_refused(served: Dashboard, host: str) -> None:
    for path in ("/", "/events", "/assets/figure.js"):
        answer, text = request(served, path, Host=host)
        assert answer.status == 421 and b"airline" not in text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "LOCALHOST:80", "[::1]:8080"])
def test_every_loopback_name_is_answered_at_any_port(served: Dashboard, host: str) -> None:
    assert request(served, Host=host)[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/events", "/assets/figure.js"])
def test_nothing_but_reading_is_allowed(served: Dashboard, method: str, path: str) -> None:
    assert request(served, path, method)[0].status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../../record/run.py",
        "/assets/..%2f..%2frecord%2frun.py",
        "/assets/%2e%2e/__init__.py",
        "/assets//etc/passwd",
        "/assets/vendor/../figure.js",
        "/assets/",
        "/events.jsonl",
        "/settings.json",
        "/metrics",
    ],
)
def test_no_request_path_reaches_the_disk(served: Dashboard, path: str) -> None:
    assert request(served, path)[0].status == 404


def test_no_private_setting_is_sent(folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    settings["party"]["keys"] = {"key": "certs/SECRET.key"}
    (folder / "settings.json").write_text(json.dumps(settings))
    with Dashboard([folder], metrics=True) as served:
        stream = Stream(served)
        sent = json.dumps(stream.next())
        stream.close()
        sent += request(served)[1].decode() + request(served, "/metrics")[1].decode()
    assert "airline" in sent and "SECRET" not in sent


def test_a_stream_sends_a_snapshot_and_then_updates(served: Dashboard, folder: Path) -> None:
    stream = Stream(served)
    name, update = stream.next()
    assert name == "update" and update["0"]["series"]["loss"]["round"] == list(range(1, 11))
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(round_event(11)) + "\n")
    name, update = stream.next()
    assert "series" not in update["0"] and update["0"]["new_points"]["loss"]["round"] == [11]
    assert update["0"]["state"]["summary"]["rounds"] == "11 of 10"
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"t": 9.0, "event": "resumed", "round": 5, "num_rounds": 40}\n')
    name, update = stream.next()
    assert update["0"]["series"]["loss"]["round"] == [1, 2, 3, 4, 5]
    stream.close()


def test_two_browsers_get_the_same_updates(served: Dashboard, folder: Path) -> None:
    streams = [Stream(served), Stream(served)]
    first = [stream.next() for stream in streams]
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(round_event(11)) + "\n")
    second = [stream.next() for stream in streams]
    assert first[0] == first[1] and second[0] == second[1] != first[0]
    for stream in streams:
        stream.close()


def test_a_stopping_server_sends_a_last_update_and_ends_its_streams(folder: Path) -> None:
    with Dashboard([folder]) as served:
        stream = Stream(served)
        stream.next()
        (folder / "summary.json").write_text('{"status": "done"}')
    _, update = stream.next()
    assert update["0"]["state"]["summary"]["status"] == "done"
    assert stream.next() == ("end", {})
    assert served.wait(0.0)
    assert not any(thread.name == "dashboard" for thread in threading.enumerate())
    stream.close()


def test_metrics_are_served_only_if_enabled(folder: Path) -> None:
    with Dashboard([folder], metrics=True) as served:
        answer, text = request(served, "/metrics")
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert b'celu_round{run="run' in text
        with (folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(round_event(11)) + "\n")
        assert b" 11.0\n" in request(served, "/metrics")[1]


def test_an_address_that_others_can_reach_needs_expose(folder: Path) -> None:
    with pytest.raises(ConfigError, match="add --expose"):
        Dashboard([folder], host="0.0.0.0")
    with pytest.raises(ConfigError, match="expected an address of this machine"):
        Dashboard([folder], host="example.org")
    with Dashboard([folder], host="0.0.0.0", expose=True) as served:
        assert request(served, Host="192.168.0.9")[0].status == 200
        assert request(served, Host=socket.gethostname())[0].status == 200
        assert request(served, Host="evil.example")[0].status == 421


def test_a_port_in_use_is_named(folder: Path, served: Dashboard) -> None:
    with pytest.raises(ConfigError, match=rf"port {port_of(served)} .*in use"):
        Dashboard([folder], port=port_of(served))


def test_malformed_host_headers_are_refused() -> None:
    for host in (
        "",
        ":80",
        "[::1",
        "localhost:",
        "localhost:80:80",
        "user@localhost",
        "127.0.0.1/",
    ):
        assert not AllowedHosts(any_address=True).allows(host), host
    assert AllowedHosts(any_address=True).allows("[fe80::1]:80") and not AllowedHosts().allows(
        "[fe80::1]:80"
    )


@pytest.mark.parametrize("package", ["uvicorn", "starlette.applications"])
def test_a_dashboard_without_its_packages_names_them(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = ("celu.dashboard.server", "celu.dashboard.routes", "celu.http_thread")
    for name in [n for n in sys.modules if n.startswith(theirs)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"pip install .celu\[dashboard\]"):
        import celu.dashboard.server  # noqa: F401
