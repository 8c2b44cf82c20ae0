"""Links that a proxy between the parties cuts, silences and restores."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from faults.parties import TIMEOUT_S, Environment, Federation, wait_for
from faults.proxy import Proxy
from slow.faults.conftest import Federate

HEARTBEAT_S = 0.5
# So long that no party is found silent, even on a busy machine.
LONG_HEARTBEAT_S = 120


@contextmanager
def nemesis(proxy: Proxy, seed: int) -> Iterator[list[str]]:
    """Cuts, silences, delays and restores the link at random until the context ends."""
    rng, over, done = Random(seed), threading.Event(), []

    def inject() -> None:
        while not over.wait(rng.uniform(0.1, 0.4)):
            fault = rng.choice(["reset", "end", "silence", "delay"])
            if fault == "silence":
                proxy.silence()
                over.wait(rng.uniform(2.0, 3.0) * HEARTBEAT_S)
            elif fault == "delay":
                proxy.slow_down(rng.uniform(0.005, 0.05))
                over.wait(0.3)
            else:
                proxy.cut(reset=fault == "reset")
                over.wait(rng.uniform(0.0, 0.3))
            proxy.restore()
            done.append(fault)

    thread = threading.Thread(target=inject)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join(TIMEOUT_S)


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_link_that_is_cut_repeatedly_reconnects_without_a_restart(
    environment: Environment, federate: Federate, baseline: Federation, carrier: str
) -> None:
    via = environment.free_port()
    federation = federate(via=via, carrier=carrier, heartbeat_s=HEARTBEAT_S)
    with Proxy(via, federation.port) as proxy:
        federation.start()
        federation.wait_for_rounds(10)
        with nemesis(proxy, seed=3) as done:
            wait_for(lambda: len(done) >= 6, "six faults", output=federation.guest.output)
        federation.wait()
    federation.assert_same_bits(baseline)
    for party in federation.parties.values():
        assert party.events("link_down") and party.events("link_up")
        assert not party.events("restart")
        assert len(party.events("attempt")) == 1
        assert "is up again after" in party.output()


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_stopped_party_is_detected_by_missing_heartbeats_and_continues(
    federate: Federate, baseline: Federation, carrier: str
) -> None:
    federation = federate(carrier=carrier, heartbeat_s=HEARTBEAT_S)
    federation.start()
    for stopped, observer in (
        (federation.host, federation.guest),
        (federation.guest, federation.host),
    ):
        federation.wait_for_rounds(20)  # and so for the link to be up
        known = len(observer.events("link_down"))
        stopped.signal(signal.SIGSTOP)
        wait_for(
            lambda party=observer, known=known: len(party.events("link_down")) > known,
            "the link to be found down",
            output=observer.output,
        )
        stopped.signal(signal.SIGCONT)
        down = observer.events("link_down")[known]
        assert f"for {2 * HEARTBEAT_S:g} s" in str(down["reason"])
    federation.wait()
    federation.assert_same_bits(baseline)
    for party in federation.parties.values():
        assert not party.events("restart")
        assert len(party.codes) == 1


def test_a_link_that_stays_down_ends_the_run_at_both_parties_which_can_resume(
    environment: Environment, federate: Federate, baseline: Federation
) -> None:
    via = environment.free_port()
    federation = federate(via=via, heartbeat_s=LONG_HEARTBEAT_S, outage_s=1.5)
    with Proxy(via, federation.port) as proxy:
        federation.start()
        federation.wait_for_checkpoint(20)
        proxy.cut(reset=True)
        federation.wait(11, 11)
        for party in federation.parties.values():
            output = " ".join(party.output().split())
            assert "down for 1.5 s (outage_s)" in output
            assert "Start again at all parties; the run resumes from its last checkpoint" in output
        proxy.restore()
        federation.start()
        federation.wait()
    federation.assert_same_bits(baseline)
    for party in federation.parties.values():
        assert party.events("resumed")[0]["round"] >= 20


def test_a_restarted_host_is_admitted_once_its_half_open_connection_is_found_silent(
    environment: Environment, federate: Federate, baseline: Federation
) -> None:
    via = environment.free_port()
    federation = federate(via=via, heartbeat_s=HEARTBEAT_S)
    with Proxy(via, federation.port) as proxy:
        federation.start()
        federation.wait_for_rounds(30)
        proxy.silence()  # the guest does not notice that its host is gone
        assert federation.host.kill()
        proxy.forget()
        proxy.restore()
        federation.host.start()
        federation.wait()
    federation.assert_same_bits(baseline)
    assert len(federation.guest.events("restart")) == 1
