"""Worker processes return what inline computation returns, and report their failures."""

from __future__ import annotations

import io
import os
import signal

import pytest

from celu.errors import CeluError, ProtocolError
from celu.psi.group import GROUPS, ID_BYTES
from celu.psi.workers import Workers, result_of, run_worker

KEY, SESSION = b"k" * 32, b"s" * 32
WAIT_S = 600.0  # a process has to start, perhaps on a busy machine


def test_processes_return_the_same_as_inline() -> None:
    inline = Workers()
    with Workers(2) as workers:
        ids = [os.urandom(5 * ID_BYTES) for _ in range(6)]
        blinded = [workers.blind(KEY, SESSION, part) for part in ids]
        assert [f.result(WAIT_S) for f in blinded] == [
            inline.blind(KEY, SESSION, part).result() for part in ids
        ]
        elements = blinded[0].result()
        assert (
            workers.reblind(KEY, elements).result(WAIT_S) == inline.reblind(KEY, elements).result()
        )
        assert workers.multiplications == 35


def test_an_invalid_element_is_refused_and_the_worker_continues() -> None:
    with Workers(1) as workers:
        with pytest.raises(ProtocolError, match="points of P-256"):
            workers.reblind(KEY, b"\xff" * 32).result(WAIT_S)
        assert len(workers.blind(KEY, SESSION, bytes(ID_BYTES)).result(WAIT_S)) == 32
    with pytest.raises(ProtocolError, match="points of P-256"):
        Workers().reblind(KEY, b"\xff" * 32).result()


def test_a_worker_that_dies_is_reported() -> None:
    with Workers(1) as workers:
        workers._processes[0].kill()
        workers._processes[0].wait(WAIT_S)
        with pytest.raises(CeluError, match="a worker process died"):
            workers.blind(KEY, SESSION, bytes(ID_BYTES)).result(WAIT_S)


def test_a_suspended_worker_is_reported_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers(1) as workers:
        workers._processes[0].send_signal(signal.SIGSTOP)
        monkeypatch.setattr("celu.psi.workers.ANSWER_S", 0.1)
        with pytest.raises(CeluError, match=r"gave no answer in 0\.1 s"):
            result_of(workers.blind(KEY, SESSION, bytes(ID_BYTES)))


def test_closing_cancels_pending_requests_and_may_be_repeated() -> None:
    workers = Workers(1)
    pending = [workers.blind(KEY, SESSION, os.urandom(2000 * ID_BYTES)) for _ in range(5)]
    workers.close()
    workers.close()
    assert all(future.done() for future in pending)
    assert workers._processes[0].poll() is not None


def test_a_worker_exits_at_the_end_of_its_input() -> None:
    replies = io.BytesIO()
    run_worker(io.BytesIO(), replies, GROUPS["P-256"])
    assert replies.getvalue() == b""
