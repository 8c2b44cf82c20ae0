"""A guest's session with a host: when its Z counts as available."""

from __future__ import annotations

from pathlib import Path

from celu.config.serving import Serving
from celu.errors import PeerRestarted
from celu.serving.asking import HostAsks
from celu.serving.cache import ZCache
from celu.serving.host_link import GuestParts
from celu.serving.row_index import ServedRows
from celu.transport.stream import StreamLink
from predictions import store_of


def test_a_host_that_restarted_is_not_up_before_its_session_has_ended(tmp_path: Path) -> None:
    rows = ServedRows(store_of(tmp_path / "store", ["one", "two"], seed=0), None)
    parts = GuestParts("guest", Serving(guest="guest", hosts=["host"]), rows)
    asks = HostAsks("host", parts, dict, ZCache(max_bytes=0, lifetime_s=1.0))
    assert not asks.is_up
    link = asks._link = StreamLink("host", deadline_s=1.0)
    assert asks.is_up
    # Its greeting ends the link; the thread of the session notices later.
    link.fail(PeerRestarted("the host started again"))
    assert not asks.is_up
