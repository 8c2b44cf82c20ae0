"""Converts the network settings of `party.toml` into the transport's `Endpoint`."""

from __future__ import annotations

import datetime as dt

from celu.config.party import GatewaySettings, PartySettings
from celu.events import Callback, ignore
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint
from celu.transport.emulation import LinkEmulator
from celu.transport.preflight import Gateway
from celu.transport.tls import Credentials


def endpoint_of(settings: PartySettings, on_event: Callback = ignore) -> Endpoint:
    """How a party listens, connects and authenticates; `on_event` receives link events.

    Raises CertificateError for keys that every peer would refuse.
    """
    keys = None
    if settings.peers and not settings.insecure:
        assert settings.keys is not None  # PartySettings checks this
        authorities = {name: peer.ca for name, peer in settings.peers.items() if peer.ca}
        keys = (settings.keys.certificate, settings.keys.key, authorities)
        Credentials.read(*keys).check_own(settings.name, dt.datetime.now(dt.UTC))
    link = settings.link

    def make_emulator() -> LinkEmulator | None:
        return None if link is None else LinkEmulator.from_settings(link)

    connect = {
        name: Route(
            peer.connect, peer.streams, peer.connections, _gateway(peer.gateway, peer.connect)
        )
        for name, peer in settings.peers.items()
        if peer.connect is not None
    }
    return Endpoint(
        name=settings.name,
        listen=settings.listen,
        accept=tuple(name for name in settings.peers if name not in connect),
        connect=connect,
        keys=keys,
        carrier=settings.carrier,
        behind_gateway=settings.gateway,
        connect_s=settings.connect_s,
        deadline_s=settings.deadline_s,
        outage_s=settings.outage_s,
        heartbeat_s=settings.heartbeat_s,
        make_emulator=make_emulator,
        on_event=on_event,
    )


def _gateway(settings: GatewaySettings | None, address: str) -> Gateway | None:
    if settings is None:
        return None
    return Gateway(settings.name or address.rsplit(":", 1)[0].strip("[]"), settings.ca)
