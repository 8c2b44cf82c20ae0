"""Through a real nginx: training, admission, and errors on the way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import celu
from bench.nginx import find_nginx, running_nginx
from celu.certs import make_authority, make_party
from celu.errors import CertificateError, ConfigError, PeerLost
from celu.testing import free_port
from celu.transport import connect, stream
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.preflight import Gateway
from federation import assert_same_bits, federation, train_in_memory, train_over_grpc
from transport.bad_certificates import BAD_CLIENTS, Keys

pytestmark = pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed here")
CARRIERS = [("grpc", 1), ("grpc", 32), ("websocket", 1)]
every_carrier = pytest.mark.parametrize(("carrier", "streams"), CARRIERS)


@dataclass(frozen=True)
class Nginx:
    """An nginx at `port`, in front of a guest at the port `upstream`."""

    port: int
    upstream: int
    ca: Path

    def route(self, streams: int = 1, **changes: Any) -> Route:
        gateway = Gateway(**{"name": "localhost", "ca": self.ca, **changes})
        return Route(f"127.0.0.1:{self.port}", streams, gateway=gateway)

    def guest(self, keys: Keys, **more: Any) -> Endpoint:
        address, peers = f"127.0.0.1:{self.upstream}", tuple(keys[2])
        return Endpoint("guest", address, peers, keys=keys, behind_gateway=True, **more)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    folder, upstream = tmp_path_factory.mktemp("nginx"), free_port()
    make_authority(folder / "certs", "the company's web servers")
    make_party(folder / "certs", "localhost")
    certificate, key = (folder / "certs" / f"localhost.{kind}" for kind in ("pem", "key"))
    with running_nginx(folder, upstream, certificate, key) as port:
        yield Nginx(port, upstream, folder / "certs" / "ca.pem")


@pytest.fixture(autouse=True)
def quick_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)


@every_carrier
def test_training_through_nginx_ends_with_the_bits_of_a_simulation(
    nginx: Nginx, tmp_path: Path, carrier: str, streams: int
) -> None:
    fed = federation(method=celu.Method(W=3, R=3), hosts={"a": 6, "b": 3})
    through = train_over_grpc(
        fed,
        tmp_path,
        listen=f"127.0.0.1:{nginx.upstream}",
        route=lambda address: nginx.route(streams),
        carrier=carrier,
        behind_gateway=True,
    )
    assert_same_bits(through, train_in_memory(fed))


@every_carrier
def test_a_wrong_inner_certificate_is_rejected_through_nginx(
    nginx: Nginx, companies: dict[str, Any], tmp_path: Path, carrier: str, streams: int
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    outcome: queue.Queue[str] = queue.Queue()
    ready = threading.Event()

    def wait() -> None:
        here = nginx.guest(guest.keys(bank), carrier=carrier, connect_s=6)
        try:
            with open_links(here, lambda port: ready.set()):
                outcome.put("connected")
        except PeerLost as error:
            outcome.put(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert ready.wait(600)
    wrong = BAD_CLIENTS["another authority"](companies, tmp_path)
    there = Endpoint(
        "bank", connect={"guest": nginx.route(streams)}, keys=wrong, carrier=carrier, connect_s=600
    )
    with pytest.raises(CertificateError), open_links(there):
        pass
    waiting.join(600)
    assert "bank did not connect with an acceptable certificate" in outcome.get(timeout=1)


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_a_gateway_with_a_bad_certificate_is_rejected(
    nginx: Nginx, companies: dict[str, Any], carrier: str, wrong: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    changes = {"authority": {"ca": guest.ca}, "name": {"name": "another.example"}}[wrong]
    there = Endpoint(
        "bank",
        connect={"guest": nginx.route(**changes)},
        keys=bank.keys(guest),
        carrier=carrier,
        connect_s=600,
    )
    error = "the certificate of the gateway of guest at .* is not acceptable"
    with pytest.raises(CertificateError, match=error), open_links(there):
        pass


@every_carrier
def test_dialing_waits_for_a_party_that_is_not_behind_its_gateway_yet(
    nginx: Nginx,
    companies: dict[str, Any],
    carrier: str,
    streams: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    tried, pause = threading.Event(), connect.time.sleep
    monkeypatch.setattr(connect.time, "sleep", lambda s: (tried.set(), pause(s))[1])
    received: list[Message] = []

    def call() -> None:
        there = Endpoint(
            "bank",
            connect={"guest": nginx.route(streams)},
            keys=bank.keys(guest),
            carrier=carrier,
            connect_s=600,
            deadline_s=600,
        )
        with open_links(there) as links:
            received.append(run_blocking(links["guest"].receive()))

    thread = threading.Thread(target=call)
    thread.start()
    assert tried.wait(600)  # nginx answered once while nobody was behind it
    here = nginx.guest(guest.keys(bank), carrier=carrier, connect_s=600, deadline_s=600)
    with open_links(here) as links:
        run_blocking(links["bank"].send(Message(Kind.READY)))
        thread.join(600)
    assert [message.kind for message in received] == [Kind.READY]


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_party_that_never_appears_behind_its_gateway_is_lost(
    nginx: Nginx, companies: dict[str, Any], carrier: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    there = Endpoint(
        "bank",
        connect={"guest": nginx.route()},
        keys=bank.keys(guest),
        carrier=carrier,
        connect_s=0.1,
    )
    # nginx answers 502 and then resets the stream. gRPC may see the reset first and report that.
    answer = {"grpc": "(502|Stream removed)", "websocket": "502"}[carrier]
    error = answer + r".*tried for 0\.1 s, connect_s.*does its gateway forward the requests"
    with pytest.raises(PeerLost, match=error), open_links(there):
        pass


def test_an_error_names_a_gateway_without_http2(
    tmp_path: Path, nginx: Nginx, companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import nginx as configured

    monkeypatch.setattr(configured, "_CONFIG", configured._CONFIG.replace(" ssl http2", " ssl"))
    certs = nginx.ca.parent
    guest, bank = companies["guest"], companies["bank"]
    with running_nginx(
        tmp_path / "nginx", nginx.upstream, certs / "localhost.pem", certs / "localhost.key"
    ) as port:
        route = Route(f"127.0.0.1:{port}", gateway=Gateway("localhost", nginx.ca))
        there = Endpoint("bank", connect={"guest": route}, keys=bank.keys(guest), connect_s=600)
        with pytest.raises(ConfigError, match="needs HTTP/2"), open_links(there):
            pass
