"""The guest's side of asks: many threads ask at once, and their rows travel together.

While asks are in flight, callers queue; when an answer arrives, the rows of all queued callers go
out as one ask. Nothing waits for a timer, so a single caller has no delay and many share the cost
of a message. `ask` has the format.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from celu.errors import AskExpired, AskRefused, CeluError, ProtocolError, ShapeError
from celu.transport.ask import MAX_ASK_S, MAX_ROW, MAX_SLOT, Ask, Refusal, only
from celu.transport.message import Kind, Message, TensorSpec, require_rows
from celu.transport.stream import StreamLink

MAX_IN_FLIGHT = 2  # a second ask travels while the host computes the first one

Decode = Callable[[Message, int], Tensor]


class Call:
    """One caller's rows, and the lock on which it waits for their answer."""

    def __init__(self, slot: int, rows: list[int], deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.slot = slot
        self.rows = rows
        self.deadline = time.monotonic() + deadline_s
        self.is_alone = False  # it shares no ask with others
        self.answer: Tensor | None = None
        self.problem: CeluError | None = None
        self._on_finish: Callable[[], None] | None = None
        self._pending = threading.Lock()
        self._pending.acquire()

    @property
    def has_finished(self) -> bool:
        """Whether `wait` returns at once, before its deadline."""
        return not self._pending.locked()

    def finish(self, answer: Tensor | None = None, problem: CeluError | None = None) -> None:
        """Wake the caller; call it once."""
        self.answer, self.problem = answer, problem
        self._pending.release()
        if self._on_finish is not None:
            self._on_finish()

    def notify(self, on_finish: Callable[[], None]) -> None:
        """Call `on_finish` when it finishes, on any thread; or now. It may be called twice.

        It must not wait: the link may be locked.
        """
        self._on_finish = on_finish
        if self.has_finished:
            on_finish()

    def wait(self) -> bool:
        """Whether it finishes before its deadline."""
        return self._pending.acquire(timeout=max(0.0, self.deadline - time.monotonic()))


class Asker:
    """Asks one host over a link, from any number of threads.

    `spec` is the largest ANSWER; `decode` returns the rows of one, and raises ProtocolError or
    NonFiniteError for bytes that are none. An answer that violates the protocol ends the link: all
    callers get the error. During an outage callers wait until their deadlines, and asks continue
    when the link is up again. `on_announce` is called for each ANNOUNCE, on the receiving thread;
    `on_end` when the link is over. A row is `numbers_per_row` numbers of an ask.
    """

    def __init__(
        self,
        link: StreamLink,
        spec: TensorSpec,
        *,
        max_rows: int,
        decode: Decode = require_rows,
        on_announce: Callable[[Message], None] = lambda message: None,
        on_end: Callable[[CeluError], None] = lambda error: None,
        numbers_per_row: int = 1,
    ) -> None:
        self._link = link
        self._max_rows = max_rows
        self._decode = decode
        self._report_end = on_end
        self._numbers_per_row = numbers_per_row
        self._lock = threading.Lock()  # never held while the link is called, which may call us
        self._queue: deque[Call] = deque()
        self._in_flight: dict[int, list[Call]] = {}  # by the number of their ask
        self._num_asks = 0
        self._end: CeluError | None = None
        link.allow({Kind.ANSWER: spec})
        handlers = {
            Kind.ANSWER: self._on_answer,
            Kind.REFUSAL: self._on_refusal,
            Kind.ANNOUNCE: on_announce,
        }
        link.handle(only(handlers, link.peer), self._on_end)

    def ask(self, slot: int, rows: list[int], deadline_s: float) -> Tensor:
        """The host's Z of these rows, in order; do not change it.

        Raises AskExpired at the deadline, AskRefused if the host refuses, the link's error when it
        is over, and ShapeError for a slot, rows or deadline out of range.
        """
        return self.wait(self.start(slot, rows, deadline_s))

    def start(self, slot: int, rows: list[int], deadline_s: float) -> Call:
        """Begin an ask, whose Z `wait` returns; raises the link's error and ShapeError."""
        self._check(slot, rows, deadline_s)
        call = Call(slot, rows, deadline_s)
        with self._lock:
            if self._end is not None:
                raise self._end
            self._queue.append(call)
            ask = self._next_ask()
        self._send(ask)
        return call

    def wait(self, call: Call) -> Tensor:
        """Wait for the Z of an ask; raises what `ask` raises."""
        if not call.wait():
            with self._lock:
                if call in self._queue:
                    self._queue.remove(call)
            raise AskExpired(
                f"{self._link.peer} did not answer within {call.deadline_s:g} s; is its side "
                "running, and is the link up?"
            )
        if call.problem is not None:
            raise call.problem
        assert call.answer is not None
        return call.answer

    def _check(self, slot: int, rows: list[int], deadline_s: float) -> None:
        max_numbers = self._max_rows * self._numbers_per_row
        if not 0 < len(rows) <= max_numbers:
            raise ShapeError(f"expected 1 to {max_numbers} numbers, got {len(rows)}")
        if min(rows) < 0 or max(rows) >= MAX_ROW:
            raise ShapeError(f"expected numbers from 0 to {MAX_ROW - 1}")
        if not 0 <= slot < MAX_SLOT or not 0.0 < deadline_s <= MAX_ASK_S:
            raise ShapeError(
                f"expected a slot below {MAX_SLOT} and a deadline of at most {MAX_ASK_S:g} s, "
                f"got slot {slot} and {deadline_s:g} s"
            )

    def _next_ask(self) -> Ask | None:
        """The queued calls that go out together now, as one ask; call it with the lock held."""
        if not self._queue or len(self._in_flight) >= MAX_IN_FLIGHT:
            return None
        first, max_numbers = self._queue[0], self._max_rows * self._numbers_per_row
        if len(self._queue) == 1:
            calls = [self._queue.popleft()]
            return self._ask_for(calls)
        calls, others, num_rows = [], deque[Call](), 0
        for call in self._queue:
            fits = call.slot == first.slot and num_rows + len(call.rows) <= max_numbers
            if call is first or (fits and not (first.is_alone or call.is_alone)):
                calls.append(call)
                num_rows += len(call.rows)
            else:
                others.append(call)
        self._queue = others
        return self._ask_for(calls)

    def _ask_for(self, calls: list[Call]) -> Ask:
        number, self._num_asks = self._num_asks, self._num_asks + 1
        self._in_flight[number], first = calls, calls[0]
        rows = first.rows if len(calls) == 1 else [row for call in calls for row in call.rows]
        return Ask(number, first.slot, rows, max(call.deadline for call in calls))

    def _send(self, ask: Ask | None) -> None:
        if ask is None:
            return
        try:
            self._link.post(ask.to_message())
        except CeluError as error:
            with self._lock:
                calls = self._in_flight.pop(ask.number, [])
            for call in calls:
                call.finish(problem=error)

    def _on_answer(self, message: Message) -> None:
        calls = self._in_flight_calls(message)
        num_rows = sum(len(call.rows) for call in calls) // self._numbers_per_row
        answer = self._decode(message, num_rows)
        self._settle(message.round)
        if len(calls) == 1:
            calls[0].finish(answer)
            return
        start = 0
        for call in calls:
            stop = start + len(call.rows) // self._numbers_per_row
            call.finish(answer[start:stop])
            start = stop

    def _on_refusal(self, message: Message) -> None:
        calls = self._in_flight_calls(message)
        reason = (message.body or {}).get("reason")
        if not isinstance(reason, str) or reason not in set(Refusal):
            raise ProtocolError(f"{message.described}: expected a known reason")
        if len(calls) > 1:  # one of them may be at fault: each is asked again, alone
            for call in calls:
                call.is_alone = True
            self._settle(message.round, calls)
            return
        self._settle(message.round)
        problem = AskRefused(f"{self._link.peer} refused the ask: {reason}", reason=reason)
        calls[0].finish(problem=problem)

    def _in_flight_calls(self, message: Message) -> list[Call]:
        with self._lock:
            calls = self._in_flight.get(message.round)
        if calls is None:
            raise ProtocolError(f"{message.described}: expected the number of an ask in flight")
        return calls

    def _settle(self, number: int, again: Sequence[Call] = ()) -> None:
        """Remove an ask that is no longer in flight, and send the next one."""
        with self._lock:
            if self._in_flight.pop(number, None) is not None:  # else the link has just ended
                self._queue.extendleft(reversed(again))
            ask = self._next_ask()
        self._send(ask)

    def _on_end(self, problem: CeluError) -> None:
        with self._lock:
            self._end = problem
            calls = [call for calls in self._in_flight.values() for call in calls]
            calls += self._queue
            self._in_flight.clear()
            self._queue.clear()
        for call in calls:
            call.finish(problem=problem)
        self._report_end(problem)
