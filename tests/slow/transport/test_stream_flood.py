"""A client that opens streams and never finishes them costs a listener bounded memory."""

from __future__ import annotations

from typing import Any

import pytest

from bench.http2_flood import flood_streams
from celu.config.party import MAX_DIRECT_STRIPES, MAX_STRIPES
from transport.listener_process import listen, peer_context

MAX_GROWTH_MIB = 64
# gRPC also stores where each frame is: the smallest frames that it does not join cost the most.
SMALL_FRAME_BYTES, MAX_GROWTH_SMALL_MIB = 24, 128


@pytest.mark.parametrize(
    ("frame_bytes", "max_growth"),
    [(16384, MAX_GROWTH_MIB), (SMALL_FRAME_BYTES, MAX_GROWTH_SMALL_MIB)],
    ids=["large frames", "small frames"],
)
@pytest.mark.parametrize(
    ("where", "connections", "streams"),
    [("gateway", 8, 500), ("direct", 2, 65), ("direct", 8, 500)],
    ids=["a stranger behind a gateway", "a peer", "a peer with many connections"],
)
def test_streams_that_are_never_finished_cost_bounded_memory(
    companies: dict[str, Any],
    where: str,
    connections: int,
    streams: int,
    frame_bytes: int,
    max_growth: float,
) -> None:
    listener = listen(companies, where)
    try:
        with listener.watched() as seen:
            flood = flood_streams(
                listener.port,
                "bank",
                peer_context(companies, where),
                10,
                connections=connections,
                streams=streams,
                stripes=MAX_STRIPES if where == "gateway" else MAX_DIRECT_STRIPES,
                frame_bytes=frame_bytes,
            )
        assert flood.opened > 0  # how many are refused depends on the speed of the machine
        assert max(seen) - seen[0] < max_growth
    finally:
        code = listener.stop()
    assert code == 0, "a flood does not keep a party from ending"
