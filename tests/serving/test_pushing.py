"""Z that hosts push: written once complete, checked chunk by chunk, found again after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from celu.config.serving import Serving
from celu.data.store import Store
from celu.errors import AlignmentError, NonFiniteError, ProtocolError, ShapeError
from celu.serving.announcement import HostModels
from celu.serving.host_link import GuestParts, RowKeys
from celu.serving.pushing import HostPush, PushedFile, chunk_ranges
from celu.serving.row_index import NO_ROW, ServedRows
from celu.transport.message import Kind, Message
from stores import write_store

NAME, OTHER = "ab" * 8, "cd" * 8
WIDTH, ROWS, CHUNK = 3, 10, 4
RANGES = [(0, 4), (4, 8), (8, 10), (10, 14), (14, 18), (18, 20)]  # training rows, then test rows


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", {"a": np.zeros(ROWS, np.float32)})


def receiver(store: Store, folder: Path) -> HostPush:
    serving = Serving(guest="guest", hosts=["host"], mode="pushed", chunk_rows=CHUNK)
    parts = GuestParts("guest", serving, ServedRows(store, None))
    host = HostPush("host", parts, lambda: {NAME: WIDTH, OTHER: WIDTH}, folder)
    host.want([NAME])
    host.models = HostModels((NAME, OTHER), {NAME: 2, OTHER: 5})
    return host


def chunk(host: HostPush, number: int, z: torch.Tensor, **changed: Any) -> Message:
    start, stop = RANGES[number]
    fields = {"row_digest": host._parts.rows.digest(start, stop), "part": 2, "round": number}
    payload = z[start:stop].contiguous().view(torch.uint8).reshape(-1, 1)
    return Message(Kind.SCORING_ACTIVATION, **{"tensor": payload, **fields, **changed})


def keys(*numbers: int) -> RowKeys:
    return RowKeys(list(numbers), [bytes(16)] * len(numbers))


def test_the_chunks_are_those_of_predict() -> None:
    assert chunk_ranges({"train": 10, "test": 10}, CHUNK) == RANGES
    assert chunk_ranges({"train": 0, "test": 3}, CHUNK) == [(0, 3)]


def test_z_is_there_when_all_chunks_are_and_after_a_restart(store: Store, tmp_path: Path) -> None:
    z = torch.randn(2 * ROWS, WIDTH)
    host = receiver(store, tmp_path / "serve")
    for number in range(len(RANGES)):
        assert not host.has_z(NAME)
        host._on_chunk(chunk(host, number, z))
    for one in (host, receiver(store, tmp_path / "serve")):
        assert one.has_z(NAME) and not one.has_z(OTHER) and one._complete() == [NAME]
        found = one.start(NAME, keys(19, NO_ROW, 0), 0.0).get()
        assert found.has_z == [True, False, True]
        assert found.z_ND is not None and (found.z_ND == z[[19, 0]].numpy()).all()
        assert one.start(OTHER, keys(1), 0.0).get().z_ND is None


def test_a_push_that_was_interrupted_starts_over(store: Store, tmp_path: Path) -> None:
    z = torch.randn(2 * ROWS, WIDTH)
    host = receiver(store, tmp_path / "serve")
    for number in range(3):
        host._on_chunk(chunk(host, number, torch.zeros_like(z)))
    host._incoming.clear()  # as a new session does
    for number in range(len(RANGES)):
        host._on_chunk(chunk(host, number, z))
    found = host.start(NAME, keys(0), 0.0).get()
    assert found.z_ND is not None and (found.z_ND == z[:1].numpy()).all()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"row_digest": bytes(16)}, AlignmentError),
        ({"round": 1}, ProtocolError),
        ({"round": 99}, ProtocolError),
        ({"part": 5}, ProtocolError),  # a model that the guest does not want
        ({"part": 7}, ProtocolError),
        ({"tensor": torch.zeros(11, 1, dtype=torch.uint8)}, ShapeError),
        ({"tensor": torch.full((CHUNK * WIDTH * 4, 1), 255, dtype=torch.uint8)}, NonFiniteError),
    ],
)
def test_a_hostile_chunk_is_refused_by_type(
    store: Store, tmp_path: Path, changed: dict[str, Any], error: type[Exception]
) -> None:
    host = receiver(store, tmp_path / "serve")
    with pytest.raises(error):
        host._on_chunk(chunk(host, 0, torch.zeros(2 * ROWS, WIDTH), **changed))
    assert not host.has_z(NAME)


def test_files_of_other_models_rows_and_damaged_ones_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "host.z"
    file = PushedFile(path, "a", 5, WIDTH)
    file.create()[:] = 1.0
    assert not PushedFile(path, "a", 5, WIDTH).open()  # it is not complete
    file.publish()
    assert PushedFile(path, "a", 5, WIDTH).open()
    assert not PushedFile(path, "b", 5, WIDTH).open()
    assert not PushedFile(path, "a", 4, WIDTH).open()
    with path.open("ab") as more:
        more.write(b"1")
    assert not PushedFile(path, "a", 5, WIDTH).open()
    path.write_bytes(b"")
    assert not PushedFile(path, "a", 5, WIDTH).open()


def test_z_of_models_that_are_no_longer_wanted_is_removed(store: Store, tmp_path: Path) -> None:
    host = receiver(store, tmp_path / "serve")
    for number in range(len(RANGES)):
        host._on_chunk(chunk(host, number, torch.zeros(2 * ROWS, WIDTH)))
    host.want([OTHER, NAME])
    assert host.has_z(NAME)
    host.want([OTHER])
    assert not host.has_z(NAME)
    assert not list((tmp_path / "serve").glob("*.z"))
