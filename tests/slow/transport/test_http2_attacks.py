"""Known attacks on HTTP/2 servers cost a listener bounded memory and keep no honest peer out."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bench.http2_attacks import ATTACKS, attack
from celu.transport.connect import open_links
from transport.listener_process import honest_peer, listen, peer_context

MAX_GROWTH_MIB = 64
# Before a client acknowledges its settings, gRPC accepts 16 MiB of headers on each connection.
MAX_GROWTH_UNACKNOWLEDGED_MIB = 256
# Every frame is answered: a client that does not read makes the listener buffer the answers.
ANSWERED = ["settings", "changing settings", "pings"]
ATTACK_S = 5.0
every_port = pytest.mark.parametrize("where", ["gateway", "direct"])


def growth_under_attack(
    companies: dict[str, Any], where: str, kind: str, **options: Any
) -> tuple[float, int]:
    """The memory in MiB that an attack costs a listener, and what the listener returns.

    Meanwhile an honest peer connects.
    """
    listener = listen(companies, where)
    context, sent = peer_context(companies, where), []

    def run() -> None:
        sent.append(attack(kind, listener.port, "bank", context, ATTACK_S, **options).sent)

    attacker = threading.Thread(target=run)
    try:
        with listener.watched() as seen:
            attacker.start()
            try:
                with open_links(honest_peer(companies, where, listener.port)) as links:
                    assert not links["guest"].is_over
                    attacker.join(600)
            finally:
                attacker.join(600)
        assert sent and sent[0] > 0
    finally:
        code = listener.stop()
    return max(seen) - seen[0], code


@every_port
@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_costs_bounded_memory_and_an_honest_peer_connects(
    companies: dict[str, Any], where: str, kind: str
) -> None:
    growth, code = growth_under_attack(companies, where, kind, reads=kind not in ANSWERED)
    assert growth < MAX_GROWTH_MIB
    assert code == 0


@every_port
@pytest.mark.parametrize("kind", ["endless headers", "header bomb"])
def test_headers_before_the_settings_are_acknowledged_cost_bounded_memory(
    companies: dict[str, Any], where: str, kind: str
) -> None:
    growth, code = growth_under_attack(
        companies, where, kind, connections=1, reads=False, acknowledges=False
    )
    assert growth < MAX_GROWTH_UNACKNOWLEDGED_MIB
    assert code == 0
