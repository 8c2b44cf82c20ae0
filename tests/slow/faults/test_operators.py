"""Operators stop a run in the middle, or rotate its certificates."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from celu.certs import make_party
from celu.testing import make_keys
from faults.parties import GUEST, HOSTS, Environment, Federation
from slow.faults.conftest import Federate

NAMES = [GUEST, HOSTS[0]]


@pytest.mark.parametrize("who", ["guest", "host"])
def test_ctrl_c_at_one_party_stops_the_other_and_both_can_resume(
    federate: Federate, baseline: Federation, who: str
) -> None:
    federation = federate()
    federation.start()
    federation.wait_for_rounds(30)
    federation.parties[who].signal(signal.SIGINT)
    federation.wait(*((130, 12) if who == "guest" else (12, 130)))
    for name, party in federation.parties.items():
        output = " ".join(party.output().split())
        assert "Traceback" not in output
        error = f"PeerFailed {who} stopped: interrupted by its operator"
        assert ("interrupted" if name == who else error) in output
    stopped = federation.parties[who].events("checkpoint")[-1]["round"]
    federation.start()
    federation.wait()
    federation.assert_same_bits(baseline)
    # No round is done twice: the other party had this checkpoint as well.
    assert [p.events("resumed")[0]["round"] for p in federation.parties.values()] == [stopped] * 2


def renew_certificates(keys: Path) -> None:
    """Make new keys and certificates with the same authorities."""
    for name in NAMES:
        certs = keys / name / "certs"
        for old in (certs / f"{name}.pem", certs / f"{name}.key"):
            old.unlink()
        make_party(certs, name)


def replace_authorities(keys: Path) -> None:
    """Make new authorities, which the parties have sent each other."""
    for name in NAMES:
        shutil.rmtree(keys / name / "certs")
    make_keys(keys, NAMES)


@pytest.mark.parametrize("rotate", [renew_certificates, replace_authorities])
def test_certificates_can_be_rotated_in_the_middle_of_a_run(
    environment: Environment,
    federate: Federate,
    baseline: Federation,
    tmp_path: Path,
    rotate: Callable[[Path], None],
) -> None:
    keys = tmp_path / "keys"
    shutil.copytree(environment.keys, keys)
    federation = federate(keys=keys)
    federation.start()
    federation.wait_for_checkpoint(20)
    for party in federation.parties.values():
        party.signal(signal.SIGINT)
    for party in federation.parties.values():
        assert party.wait() in (130, 12)  # 12: the other party's message came first
    rotate(keys)
    federation.start()
    federation.wait()
    federation.assert_same_bits(baseline)
    assert all(p.events("resumed")[0]["round"] >= 20 for p in federation.parties.values())
