"""Messages whose tensors are on a GPU."""

from __future__ import annotations

import pytest
import torch

from celu.codecs.registry import find_codec
from celu.device_copy import to_device, to_main_memory
from celu.errors import NonFiniteError
from celu.transport.message import Kind, Message
from celu.transport.wire import as_sendable, encode_whole

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")
ROWS, WIDTH = 4096, 256


def busy() -> None:
    """Give the device work of some milliseconds."""
    x = torch.randn(4096, 4096, device=CUDA)
    for _ in range(20):
        x = x @ x / 64


def test_what_is_sent_is_what_the_device_computes_although_it_has_not_computed_it_yet() -> None:
    for _ in range(20):
        busy()
        z_BD = torch.randn(ROWS, WIDTH, device=CUDA)
        message = as_sendable(Message(Kind.ACTIVATION, 3, tensor=z_BD.exp()))
        busy()
        expected = encode_whole(Message(Kind.ACTIVATION, 3, tensor=z_BD.exp().cpu()), 0, 0)
        assert message.copied is not None
        assert encode_whole(message, 0, 0) == expected


def test_a_copy_starts_before_what_the_device_computes_next() -> None:
    busy()  # what a first use takes
    z_BD = torch.randn(ROWS, WIDTH, device=CUDA)
    torch.cuda.synchronize()
    busy()
    copy, copied = to_main_memory(z_BD)  # waits for that
    busy()
    end = torch.cuda.Event()
    end.record()
    copied.synchronize()
    assert not end.query()
    assert copy.equal(z_BD.cpu())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("codec", ["fp32", "4bit"])
def test_nan_and_inf_on_a_gpu_are_refused_before_they_are_sent(codec: str, value: float) -> None:
    z_BD = torch.randn(64, 32, device=CUDA)
    z_BD[7, 3] = value
    message = Message(Kind.DERIVATIVE, 2, tensor=z_BD)
    if codec != "fp32":
        payload = find_codec(codec, "codec").encode(z_BD, None).reshape(-1, 1)
        total = z_BD.sum(dtype=torch.float64)
        message = Message(Kind.DERIVATIVE, 2, tensor=payload, total=total)
    with pytest.raises(NonFiniteError, match="round 2"):
        as_sendable(message)


def test_large_numbers_are_no_infinity() -> None:
    z_BD = torch.full((ROWS, WIDTH), 3e38, device=CUDA)
    assert as_sendable(Message(Kind.ACTIVATION, tensor=z_BD)).tensor is not None


def test_what_is_copied_to_a_gpu_is_there_for_what_computes_with_it() -> None:
    for seed in range(20):
        z_BD = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))
        found = to_device(z_BD, CUDA) * 2
        assert found.cpu().equal(z_BD * 2)
