"""The simulated effect of TLS: what is not the next record, as sent, ends a connection."""

from __future__ import annotations

import pytest

from celu.errors import PeerLost
from chaos.connection import CarrierTls


def test_records_arrive_as_sent() -> None:
    sender, receiver = CarrierTls(1), CarrierTls(1)
    for piece in (b"one", b"two"):
        assert receiver.receive(sender.encrypt(piece)) == piece


def test_a_record_that_is_repeated_swapped_or_of_another_connection_is_rejected() -> None:
    sender = CarrierTls(1)
    first, second = sender.encrypt(b"one"), sender.encrypt(b"two")
    other = CarrierTls(2).encrypt(b"one")
    for records in ((first, first), (second,), (other,)):
        receiver = CarrierTls(1)
        with pytest.raises(PeerLost, match="rejects the record"):
            for record in records:
                receiver.receive(record)
