"""Test parties: their certificates, and links of every kind between them."""

from __future__ import annotations

import datetime as dt
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from celu.certs import make_authority, make_party
from celu.transport import stream
from celu.transport.connect import Endpoint, open_links
from celu.transport.link import Link, run_blocking
from celu.transport.memory import memory_links
from transport.transports import TRANSPORTS, Transport

GUEST = "guest"
HOSTS = ["airline", "bank", "clinic"]
HOUR = dt.timedelta(hours=1)
EITHER_ROLE = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True)
class Company:
    """A folder with an authority and one party, as `celu certs` makes them."""

    name: str
    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def keys(self, *peers: Company) -> tuple[Path, Path, dict[str, Path]]:
        return self.certificate, self.key, {peer.name: peer.ca for peer in peers}

    def issue(
        self,
        folder: Path,
        name: str,
        *,
        valid: tuple[dt.timedelta, dt.timedelta] = (-HOUR, HOUR),
        uses: tuple[x509.ObjectIdentifier, ...] = EITHER_ROLE,
        use_rsa: bool = False,
        self_signed: bool = False,
    ) -> tuple[Path, Path]:
        """A certificate and key signed by this company's authority, with these changes."""
        key: Any = (
            rsa.generate_private_key(65537, 2048)
            if use_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer, issuer_key = subject, key
        if not self_signed:
            issuer = x509.load_pem_x509_certificate(self.ca.read_bytes()).subject
            issuer_key = load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + valid[0])
            .not_valid_after(now + valid[1])
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(issuer_key, hashes.SHA256())
        )
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "odd.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / "odd.key").write_bytes(secret)
        return folder / "odd.pem", folder / "odd.key"


@pytest.fixture(scope="session")
def companies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Company]:
    """The guest and three hosts. All authorities have the same name, as by default."""
    made = {}
    for name in [GUEST, *HOSTS]:
        company = Company(name, tmp_path_factory.mktemp(name))
        make_authority(company.folder, "celu")
        make_party(company.folder, name)
        made[name] = company
    return made


class Waiting:
    """The outcome of a coroutine that waits forever."""


AnyCoroutine = Coroutine[Any, Any, Any]


class Federation(Protocol):
    """The guest's links and the hosts', by host; runs coroutines over them."""

    guest: dict[str, Link]
    hosts: dict[str, Link]

    def run(self, coroutines: dict[str, AnyCoroutine]) -> dict[str, Any]:
        """Run coroutines concurrently; returns what each returned or raised, or `Waiting`."""
        ...


class InMemory:
    """Links in one process, and a scheduler that runs the coroutines in turn."""

    def __init__(self, hosts: list[str]) -> None:
        pairs = {name: memory_links(GUEST, name) for name in hosts}
        self.guest: dict[str, Link] = {name: pair[0] for name, pair in pairs.items()}
        self.hosts: dict[str, Link] = {name: pair[1] for name, pair in pairs.items()}

    def run(self, coroutines: dict[str, AnyCoroutine]) -> dict[str, Any]:
        ended: dict[str, Any] = {}
        before = -1
        while len(ended) < len(coroutines) and before != self._progress() + len(ended):
            before = self._progress() + len(ended)
            for name, coroutine in coroutines.items():
                if name not in ended:
                    try:
                        coroutine.send(None)
                    except StopIteration as done:
                        ended[name] = done.value
                    except Exception as error:
                        ended[name] = error
        for name in coroutines.keys() - ended.keys():
            coroutines[name].close()
            ended[name] = Waiting()
        return ended

    def _progress(self) -> int:
        links = [*self.guest.values(), *self.hosts.values()]
        return sum(link.traffic.sent.messages + link.traffic.received.messages for link in links)


class OverSockets:
    """Links over a transport on this machine, and a thread for each coroutine."""

    def __init__(self, num_hosts: int) -> None:
        self._pool = ThreadPoolExecutor(num_hosts + 1)
        self._contexts: list[AbstractContextManager[Any]] = []
        self.guest: dict[str, Link] = {}
        self.hosts: dict[str, Link] = {}

    def open(
        self,
        hosts: list[str],
        transport: Transport,
        made: dict[str, Company],
        deadline_s: float,
        outage_s: float,
        heartbeat_s: float,
    ) -> None:
        ports: queue.Queue[int] = queue.Queue()
        companies = made if transport.secure else None
        common: Any = {
            "carrier": transport.carrier,
            "connect_s": 600,
            "deadline_s": deadline_s,
            "outage_s": outage_s,
            "heartbeat_s": heartbeat_s,
        }
        keys = companies and companies[GUEST].keys(*(companies[name] for name in hosts))
        here = Endpoint(
            GUEST,
            "127.0.0.1:0",
            tuple(hosts),
            keys=keys,
            behind_gateway=transport.inner_tls,
            **common,
        )
        guest = open_links(here, ports.put)
        self._contexts.append(guest)
        opening = self._pool.submit(guest.__enter__)
        address = f"127.0.0.1:{ports.get(timeout=600)}"
        for name in hosts:
            keys = companies and companies[name].keys(companies[GUEST])
            there = Endpoint(name, connect={GUEST: transport.route(address)}, keys=keys, **common)
            host = open_links(there)
            self.hosts[name] = host.__enter__()[GUEST]
            self._contexts.append(host)
        self.guest.update(opening.result(timeout=600))

    def run(self, coroutines: dict[str, AnyCoroutine]) -> dict[str, Any]:
        running = {name: self._pool.submit(run_blocking, p) for name, p in coroutines.items()}
        return {
            name: future.exception(timeout=600) or future.result()
            for name, future in running.items()
        }

    def close(self) -> None:
        leaving = [self._pool.submit(c.__exit__, None, None, None) for c in self._contexts]
        for future in leaving:
            future.result(timeout=600)
        self._pool.shutdown()


Federate = Callable[..., Federation]


@pytest.fixture
def federate(
    request: pytest.FixtureRequest,
    companies: dict[str, Company],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Federate]:
    """Makes a federation; the parameter is (transport, number of hosts)."""
    transport, num_hosts = request.param
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)  # peers often do not answer here
    # Idle threads of earlier tests end with their pools, whenever those are collected.
    before = set(threading.enumerate())
    with ExitStack() as stack:
        # Heartbeats so long that no peer is found silent on a busy machine.
        def make(
            deadline_s: float = 600.0, outage_s: float = 0.5, heartbeat_s: float = 300.0
        ) -> Federation:
            if transport == "memory":
                return InMemory(HOSTS[:num_hosts])
            made = OverSockets(num_hosts)
            stack.callback(made.close)
            made.open(
                HOSTS[:num_hosts],
                TRANSPORTS[transport],
                companies,
                deadline_s,
                outage_s,
                heartbeat_s,
            )
            return made

        yield make
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("from-", "to-", "reconnect-", "celu-")):
            thread.join(timeout=600)
            stack = sys._current_frames().get(thread.ident or 0)
            where = "".join(traceback.format_stack(stack)[-6:]) if thread.is_alive() else ""
            assert not thread.is_alive(), f"{thread.name} outlives its link:\n{where}"
