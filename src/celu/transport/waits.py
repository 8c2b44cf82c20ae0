"""What the threads of one link wait for: one lock, and a condition or signal for each purpose.

A message that is sent or received wakes only the thread that it concerns. With one condition for
all purposes, each message would wake every thread of the link, and each would take Python's
interpreter lock in turn.
"""

from __future__ import annotations

import threading


class Signal:
    """Wakes the one thread that waits for it; cheaper than a condition, which serves any number."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._is_waiting = False
        self._wake = threading.Lock()
        self._wake.acquire()

    def notify(self) -> None:
        """Wake the thread, if one waits; call it with the lock held."""
        if self._is_waiting:
            self._is_waiting = False
            self._wake.release()

    def wait(self, seconds: float) -> None:
        """Release the lock until `notify` or the timeout; it must be held once, not nested."""
        self._is_waiting = True
        self._lock.release()
        try:
            self._wake.acquire(timeout=seconds)
        finally:
            self._lock.acquire()
            if self._is_waiting:  # the timeout, or an interrupt
                self._is_waiting = False
            else:  # `notify` may have come just after the timeout
                self._wake.acquire(blocking=False)


class Waits:
    """One lock, and what threads may wait for while they release it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # an aborted connection may call back on the same thread
        self.room_to_send = threading.Condition(self.lock)  # `send`: room for a message
        self.to_receive = threading.Condition(self.lock)  # `receive`: a message
        self.room_to_receive = threading.Condition(self.lock)  # receiving threads: room for one
        self.change = threading.Condition(self.lock)  # others: connections, the link's end

    def notify_all(self) -> None:
        """Wake all threads: a connection or the link has changed. Call it with the lock held."""
        for condition in (
            self.room_to_send,
            self.to_receive,
            self.room_to_receive,
            self.change,
        ):
            condition.notify_all()
