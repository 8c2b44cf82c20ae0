"""Links over gRPC: one synchronous bidirectional stream to each peer, under mutual TLS 1.3.

Either side may listen. Messages are byte strings of our own (`wire`); gRPC neither parses nor
limits them beyond the size of a piece.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Read by gRPC once, when it is first used. Its TLS 1.2 suites are narrowed to one for pre-shared
# keys, of which there are none, so no certificate can use it. That leaves TLS 1.3 (whose suites
# this does not touch) as the only version that can be negotiated.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors reach the user through ours

import grpc

from celu.errors import CeluError, CertificateError, ConfigError, PeerLost
from celu.transport.emulation import Line
from celu.transport.stream import StreamLink
from celu.transport.tls import Identity, issued_for, knock
from celu.transport.wire import PIECE_BYTES

_SERVICE = "celu.Link"
_METHOD = "Exchange"
_NAME_KEY = "celu-name"  # says who calls; believed only where the connection is insecure
_OPTIONS = [
    ("grpc.max_receive_message_length", PIECE_BYTES + 1024),
    ("grpc.max_send_message_length", PIECE_BYTES + 1024),
    ("grpc.so_reuseport", 0),  # a second party on the same port is a mistake: let it fail
]
MakeLink = Callable[[str], StreamLink]


class Listener:
    """Waits for the named peers on one port. `identity` None means an insecure connection."""

    def __init__(
        self, address: str, peers: list[str], identity: Identity | None, make_link: MakeLink
    ) -> None:
        self._identity = identity
        self._links = {name: make_link(name) for name in peers}
        self._arrived = {name: threading.Event() for name in peers}
        self._claim = threading.Lock()
        self._stopping = False
        self.refused: deque[str] = deque(maxlen=5)  # for the error message; callers may be many
        # One thread a peer carries its outgoing side for the whole run; two more turn away others.
        self._server: Any = grpc.server(
            futures.ThreadPoolExecutor(len(peers) + 2, thread_name_prefix="celu-listen"),
            options=_OPTIONS,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),)
        )
        try:
            self.port = self._bind(address)
        except RuntimeError as error:
            raise ConfigError(
                f"listen: expected an address of this machine with a free port, got {address}"
            ) from error
        self._server.start()

    def _bind(self, address: str) -> int:
        if self._identity is None:
            return int(self._server.add_insecure_port(address))
        credentials = grpc.ssl_server_credentials(
            [(self._identity.key, self._identity.certificate)],
            root_certificates=b"\n".join(self._identity.authorities.values()),
            require_client_auth=True,
        )
        return int(self._server.add_secure_port(address, credentials))

    def wait(self, connect_s: float) -> dict[str, StreamLink]:
        """The links, once every peer has come; raises PeerLost at the deadline."""
        give_up = time.monotonic() + connect_s
        for name, arrived in self._arrived.items():
            if not arrived.wait(max(0.0, give_up - time.monotonic())):
                turned_away = f"; turned away: {'; '.join(self.refused)}" if self.refused else ""
                raise PeerLost(
                    f"{name} did not connect with an acceptable certificate within "
                    f"{connect_s:g} s (connect_s){turned_away}"
                )
        return self._links

    def stop(self) -> None:
        """Stop listening; links that are still open get a moment to end."""
        with self._claim:
            self._stopping = True
        for name, arrived in self._arrived.items():
            if arrived.is_set():  # its thread waits for something to send, and would for good
                self._links[name].close()
        self._server.stop(grace=1.0).wait(2.0)

    def _exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        name, problem = self._caller(context)
        with self._claim:
            if not problem and self._arrived[name].is_set():
                problem = f"{name} is connected already"
            if self._stopping:
                problem = "no longer listening"
            if not problem:
                self._arrived[name].set()
        if problem:
            self.refused.append(problem)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
        link = self._links[name]
        threading.Thread(
            target=link.pump, args=(requests,), name=f"from-{name}", daemon=True
        ).start()
        yield from link.outgoing()

    def _caller(self, context: Any) -> tuple[str, str]:
        """The caller's name, and what is wrong with it ("" if nothing is)."""
        if self._identity is None:
            name = dict(context.invocation_metadata()).get(_NAME_KEY, "")
            return name, "" if name in self._links else "a caller gave a name not in the contract"
        auth = context.auth_context()
        if auth.get("ssl_tls_version", [b"TLSv1.3"]) != [b"TLSv1.3"]:
            return "", "a caller used a TLS version below 1.3"
        certificate = auth["x509_pem_cert"][0]
        for name, authority in self._identity.authorities.items():
            if name in self._links and issued_for(certificate, name, authority):
                return name, ""
        return "", "a caller's certificate is for none of the expected parties"


class Connection:
    """A link to a peer that listens, opened by us."""

    def __init__(
        self, address: str, name: str, peer: str, identity: Identity | None, make_link: MakeLink
    ) -> None:
        if identity is None:
            self._channel: Any = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(
                identity.authorities[peer], identity.key, identity.certificate
            )
            options = [*_OPTIONS, ("grpc.ssl_target_name_override", peer)]
            self._channel = grpc.secure_channel(address, credentials, options=options)
        self.link = make_link(peer)
        self.link.explain = lambda error: _explain(error, peer, address)
        call = self._channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(
            self.link.outgoing(), metadata=((_NAME_KEY, name),), wait_for_ready=True
        )
        threading.Thread(
            target=self.link.pump, args=(call,), name=f"from-{peer}", daemon=True
        ).start()

    def stop(self) -> None:
        """End the connection."""
        self._channel.close()


def _explain(error: Exception, peer: str, address: str) -> CeluError:
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        if error.code() == grpc.StatusCode.PERMISSION_DENIED:
            return CertificateError(f"{peer} at {address} turned us away: {error.details()}")
        return PeerLost(f"the link to {peer} at {address} broke: {error.details()}")
    return PeerLost(f"the link to {peer} at {address} broke: {error}")


@dataclass(frozen=True)
class Endpoint:
    """How one party is reached and reaches the others.

    `connect` maps peers that listen to their addresses; `accept` names those that come to us, at
    `listen`. `keys` are our certificate, our key and each peer's authority; None is an insecure
    run. `line` makes an emulated line for each link.
    """

    name: str
    listen: str | None = None
    accept: tuple[str, ...] = ()
    connect: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[Path, Path, Mapping[str, Path]] | None = None
    connect_s: float = 300.0
    deadline_s: float = 120.0
    line: Callable[[], Line | None] = lambda: None


@contextmanager
def open_links(
    endpoint: Endpoint, listening: Callable[[int], None] = lambda port: None
) -> Iterator[dict[str, StreamLink]]:
    """A link to every peer, in whichever direction; closed on leaving.

    `listening` is told the port once we can be reached. Raises PeerLost where a peer does not come
    or answer in time, CertificateError where one side refuses the other.
    """
    keys = endpoint.keys
    identity = Identity.read(keys[0], keys[1], keys[2]) if keys else None

    def make_link(peer: str) -> StreamLink:
        return StreamLink(peer, deadline_s=endpoint.deadline_s, line=endpoint.line())

    with ExitStack() as stack:
        links: dict[str, StreamLink] = {}
        listener = None
        if endpoint.accept:
            assert endpoint.listen is not None  # settings are checked: whoever accepts, listens
            listener = Listener(endpoint.listen, list(endpoint.accept), identity, make_link)
            stack.callback(listener.stop)
            listening(listener.port)
        for peer, address in endpoint.connect.items():
            if keys:
                knock(address, peer, (keys[0], keys[1], keys[2][peer]), endpoint.connect_s)
            connection = Connection(address, endpoint.name, peer, identity, make_link)
            stack.callback(connection.stop)
            stack.callback(connection.link.close)
            links[peer] = connection.link
        if listener is not None:
            links |= listener.wait(endpoint.connect_s)
        yield links
