"""Messages whose tensors are on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import celu
from celu.codecs.quantizers import RotatedQuantizer, RowQuantizer
from celu.codecs.registry import find_codec
from celu.device_copy import to_device, to_main_memory
from celu.errors import NonFiniteError
from celu.transport.message import Kind, Message
from celu.transport.wire import as_sendable, encode_whole
from engine.test_on_a_gpu import on_device
from federation import federation, train_in_memory, train_over_grpc

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


@pytest.mark.parametrize("codec", ["int8", "4bit"])
@pytest.mark.parametrize("R", [1, 3])
def test_coded_messages_of_a_network_are_decoded_on_the_gpu_and_train_like_those_of_a_cpu(
    codec: str, R: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: dict[str, int] = {}

    def noted(decode: Any) -> Any:
        def note(self: Any, payload: torch.Tensor, *shape: int) -> torch.Tensor:
            decoded[payload.device.type] = decoded.get(payload.device.type, 0) + 1
            found: torch.Tensor = decode(self, payload, *shape)
            return found

        return note

    for quantizer in (RowQuantizer, RotatedQuantizer):
        if "decode" in vars(quantizer):
            monkeypatch.setattr(quantizer, "decode", noted(quantizer.decode))
    fed = federation(
        rounds=6,
        codec=codec,
        optimizer=celu.Optimizer(name="sgd", lr=0.05),
        method=celu.Method(W=3, R=R),
    )
    on_cpu = train_in_memory(fed)
    assert set(decoded) == {"cpu"}
    decoded.clear()
    moved = on_device(fed, rows_too=True)
    in_memory = train_in_memory(moved)
    decoded.clear()
    over_a_network = train_over_grpc(moved, tmp_path)
    assert decoded.get("cuda", 0) >= 2 * 6  # Z and dZ of each round, as they came
    assert "cpu" not in decoded
    for name, tensor in over_a_network.items():
        torch.testing.assert_close(tensor, in_memory[name], rtol=1e-3, atol=1e-5, msg=name)
        # Stochastic rounding draws other numbers there: a level of the codec, times the rate.
        torch.testing.assert_close(tensor.cpu(), on_cpu[name], rtol=1e-2, atol=5e-3, msg=name)
