"""Worker processes give what one process gives, and fail by name."""

from __future__ import annotations

import io
import os

import pytest

from celu.errors import CeluError, ProtocolError
from celu.psi.group import GROUPS, ID_BYTES
from celu.psi.workers import Workers, serve

KEY, SESSION = b"k" * 32, b"s" * 32


def test_processes_give_what_this_one_gives() -> None:
    alone = Workers()
    with Workers(2) as workers:
        ids = [os.urandom(5 * ID_BYTES) for _ in range(6)]
        blinded = [workers.blind(KEY, SESSION, part) for part in ids]
        assert [f.result(20) for f in blinded] == [
            alone.blind(KEY, SESSION, part).result() for part in ids
        ]
        elements = blinded[0].result()
        assert workers.reblind(KEY, elements).result(20) == alone.reblind(KEY, elements).result()
        assert workers.multiplications == 35


def test_what_is_no_element_is_refused_and_the_worker_goes_on() -> None:
    with Workers(1) as workers:
        with pytest.raises(ProtocolError, match="points of P-256"):
            workers.reblind(KEY, b"\xff" * 32).result(20)
        assert len(workers.blind(KEY, SESSION, bytes(ID_BYTES)).result(20)) == 32
    with pytest.raises(ProtocolError, match="points of P-256"):
        Workers().reblind(KEY, b"\xff" * 32).result()


def test_a_worker_that_dies_is_noticed() -> None:
    with Workers(1) as workers:
        workers._processes[0].kill()
        workers._processes[0].wait(10)
        with pytest.raises(CeluError, match="a worker process ended"):
            workers.blind(KEY, SESSION, bytes(ID_BYTES)).result(20)


def test_closing_drops_what_is_left_and_may_be_done_twice() -> None:
    workers = Workers(1)
    left = [workers.blind(KEY, SESSION, os.urandom(2000 * ID_BYTES)) for _ in range(5)]
    workers.close()
    workers.close()
    assert all(future.done() for future in left)
    assert workers._processes[0].poll() is not None


def test_a_worker_ends_with_its_input() -> None:
    replies = io.BytesIO()
    serve(io.BytesIO(), replies, GROUPS["P-256"])
    assert replies.getvalue() == b""
