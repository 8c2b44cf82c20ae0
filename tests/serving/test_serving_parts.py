"""The small parts of serving: cache, rows by tag, tags in asks, announcements, batches."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celu.data.tags import make_tags
from celu.errors import ProtocolError, RequestError
from celu.serving.announcement import HostModels, read_wanted, wanted_message
from celu.serving.ask_rows import numbers_from_tags, tags_from_numbers
from celu.serving.batching import Batcher, Job, Outcome
from celu.serving.cache import ZCache
from celu.serving.inference_protocol import Answer, InferRequest
from celu.serving.row_index import NO_ROW, RowIndex
from celu.transport.ask import MAX_ROW
from celu.transport.message import Kind, Message

WAIT_S = 600.0
Z = np.arange(4, dtype=np.float32)


def test_a_cached_row_expires() -> None:
    now = [0.0]
    cache = ZCache(10_000, 5.0, clock=lambda: now[0])
    cache.put(("m", "h", b"1"), Z)
    now[0] = 4.9
    assert (cache.get(("m", "h", b"1")) == Z).all()  # type: ignore[union-attr]
    now[0] = 5.1
    assert cache.get(("m", "h", b"1")) is None
    assert cache.num_bytes == 0
    assert (cache.hits, cache.misses) == (1, 1)


def test_the_cache_is_bounded_in_bytes_and_drops_what_was_used_longest_ago() -> None:
    cache = ZCache(5 * (Z.nbytes + 400), 100.0)
    keys = [("m", "h", bytes([n])) for n in range(6)]
    for key in keys[:5]:
        cache.put(key, Z)
    assert cache.get(keys[0]) is not None
    cache.put(keys[5], Z)
    assert cache.get(keys[1]) is None
    assert all(cache.get(keys[n]) is not None for n in (0, 2, 3, 4, 5))
    cache.put(keys[0], np.zeros(10_000, np.float32))  # larger than the whole cache
    assert cache.num_bytes <= 5 * (Z.nbytes + 400)


def test_a_row_of_another_model_is_not_in_the_cache() -> None:
    cache = ZCache(10_000, 100.0)
    cache.put(("m", "h", b"1"), Z)
    assert cache.get(("n", "h", b"1")) is None
    assert cache.get(("m", "i", b"1")) is None


@pytest.mark.parametrize("is_sorted", [True, False])
def test_rows_are_found_by_tag(is_sorted: bool) -> None:
    tags = make_tags([f"id-{n}" for n in range(500)], 1).copy()
    tags[7, :8] = tags[8, :8]  # two tags that share the half by which they are searched
    if is_sorted:
        tags = tags[np.lexsort(tags.T[::-1])]
    index = RowIndex(tags)
    assert [index.find(tag.tobytes()) for tag in tags] == list(range(500))
    assert index.find(make_tags(["other"], 1).tobytes()) == NO_ROW
    assert RowIndex(tags[:0]).find(tags[0].tobytes()) == NO_ROW


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=20))
def test_tags_survive_as_numbers_of_an_ask(content: list[bytes]) -> None:
    numbers = numbers_from_tags(content)
    assert len(numbers) == 3 * len(content)
    assert min(numbers) >= 0 and max(numbers) < MAX_ROW
    assert tags_from_numbers(numbers) == content


def test_announcements_survive_the_wire_form() -> None:
    models = HostModels(("ab" * 8, "cd" * 8), {"ab" * 8: 3})
    assert HostModels.from_message(models.to_message()) == models
    message = wanted_message(["ab" * 8], ["cd" * 8])
    assert read_wanted(message) == (["ab" * 8], ["cd" * 8])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"held": [], "slots": []},
        {"held": "ab" * 8, "slots": {}},
        {"held": ["x"], "slots": {}},
        {"held": ["../../etc/passwd"], "slots": {}},
        {"held": ["ab" * 8] * 1001, "slots": {}},
        {"held": [], "slots": {"ab" * 8: -1}},
        {"held": [], "slots": {"ab" * 8: 2**16}},
        {"held": [], "slots": {"ab" * 8: True}},
        {"held": [], "slots": {"ab" * 8: 1, "cd" * 8: 1}},
        {"held": [], "slots": {f"{n:016x}": n for n in range(3)}},
        {"wanted": ["ab" * 8] * 3, "complete": []},
        {"wanted": [1], "complete": []},
        {"wanted": []},
    ],
)
def test_hostile_announcements_are_protocol_errors(body: dict[str, object]) -> None:
    message = Message(Kind.ANNOUNCE, body=body)
    with pytest.raises(ProtocolError):
        HostModels.from_message(message)
    with pytest.raises(ProtocolError):
        read_wanted(message)


def job(ids: list[str], done: list[Outcome], released: threading.Semaphore) -> Job:
    def finish(outcome: Outcome) -> None:
        done.append(outcome)
        released.release()

    return Job(InferRequest(ids), 0.0, finish)


def test_requests_that_wait_are_answered_together_up_to_the_maximum_of_rows() -> None:
    taken: list[list[int]] = []
    may_work = threading.Semaphore(0)
    is_working = threading.Semaphore(0)

    def work(jobs: list[Job]) -> list[Outcome]:
        taken.append([one.num_rows for one in jobs])
        is_working.release()
        assert may_work.acquire(timeout=WAIT_S)
        return [Answer("m", [0.0], [[]]) for _ in jobs]

    done: list[Outcome] = []
    released = threading.Semaphore(0)
    with Batcher(work, max_rows=10, max_jobs=6, num_threads=1) as batcher:
        batcher.submit(job(["a"], done, released))
        assert is_working.acquire(timeout=WAIT_S)
        for count in (4, 6, 1, 20, 3, 3):
            batcher.submit(job(["x"] * count, done, released))
        with pytest.raises(RequestError, match="requests wait") as refused:
            batcher.submit(job(["x"], done, released))
        assert refused.value.status == 429
        may_work.release(10)
        for _ in range(7):
            assert released.acquire(timeout=WAIT_S)
    assert taken == [[1], [4, 6], [1], [20], [3, 3]]
    with pytest.raises(RequestError, match="stopping"):
        batcher.submit(job(["x"], done, released))


def test_a_bug_fails_its_requests_and_no_others() -> None:
    def work(jobs: list[Job]) -> list[Outcome]:
        if jobs[0].request.ids == ["bad"]:
            raise ZeroDivisionError
        return [Answer("m", [0.0], [[]]) for _ in jobs]

    done: list[Outcome] = []
    released = threading.Semaphore(0)
    with Batcher(work, max_rows=1, max_jobs=10, num_threads=1) as batcher:
        for name in ("bad", "good"):
            batcher.submit(job([name], done, released))
            assert released.acquire(timeout=WAIT_S)
    assert isinstance(done[0], ZeroDivisionError) and isinstance(done[1], Answer)
