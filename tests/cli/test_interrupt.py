"""Ctrl-C in a run, by real signals to this process."""

from __future__ import annotations

import io
import os
import signal

import pytest
from rich.console import Console

from celu.cli.interrupt import InterruptHandler
from celu.events import CheckpointTaken, RoundDone, TrainingResumed, TrainingStarted


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_stops_at_the_next_checkpoint(said: io.StringIO) -> None:
    with InterruptHandler(Console(file=said, width=200), "airline") as stopping:
        stopping.event(TrainingStarted(num_rounds=9))
        stopping.event(CheckpointTaken(round=3, seconds=1.0))  # nobody asked
        interrupt()
        stopping.event(RoundDone(round=4, seconds=1.0))
        with pytest.raises(KeyboardInterrupt):
            stopping.event(CheckpointTaken(round=6, seconds=1.0))
    assert "stops at the next checkpoint" in said.getvalue()
    assert "stops after round 6" in said.getvalue()


def test_the_second_stops_at_once(said: io.StringIO) -> None:
    with InterruptHandler(Console(file=said), "airline") as stopping:
        stopping.event(TrainingResumed(round=3, num_rounds=9))
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_before_training_the_first_stops_at_once(said: io.StringIO) -> None:
    with InterruptHandler(Console(file=said), "airline"), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_afterwards_signals_mean_what_they_meant(said: io.StringIO) -> None:
    before = signal.getsignal(signal.SIGINT)
    with InterruptHandler(Console(file=said), "airline"):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
