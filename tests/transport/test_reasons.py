"""A link that breaks always has a reason, also where its carrier gives none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from celu.transport.connection import reason_of
from celu.transport.grpc_carrier import _explain


def test_an_error_without_text_is_named_by_its_type() -> None:
    assert reason_of(ConnectionResetError()) == "ConnectionResetError"
    assert reason_of(ConnectionResetError("reset")) == "reset"


def test_a_grpc_status_without_details_is_named_by_its_code() -> None:
    def abort(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "")
        yield b""

    handler = grpc.stream_stream_rpc_method_handler(abort)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Link", {"Call": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/test.Link/Call")(iter([]))
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    server.stop(None).wait()
    text = str(_explain(caught.value, "guest", "there:7443"))
    assert text == "the link to guest at there:7443 broke: deadline exceeded"
