"""Encodes tensors into messages and decodes them, with the contract's codecs.

float32 tensors are sent as they are: the link checks them for NaN and Inf, and its thread copies
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from celu.codecs.registry import find_codec
from celu.config.job import Codecs, Job
from celu.data.dataset import Batch
from celu.device_copy import to_device
from celu.engine.device import current
from celu.engine.spans import Spans
from celu.errors import AlignmentError, ProtocolError
from celu.transport.message import Kind, Message, TensorSpec, require_rows
from celu.transport.wire import check_finite

_CPU = torch.device("cpu")
_MAX = torch.finfo(torch.float32).max


def check_same_rows(message: Message, batch: Batch) -> None:
    """Raise AlignmentError if the peer computed its tensor from rows other than ours."""
    if message.row_digest != batch.row_digest:
        raise AlignmentError(
            f"{message.described}: the peer used rows other than ours; its tensor was not used. A "
            'store may have changed since the parties were aligned: run "celu align" again at all '
            "parties"
        )


class Coding:
    """Encodes and decodes the tensors between the guest and one host."""

    def __init__(
        self, job: Job, host: str, codecs: Codecs | None = None, spans: Spans | None = None
    ) -> None:
        self._spans = spans or Spans()
        self._seed = job.seed
        self._host = host
        self._batch_size = job.batch_size
        self._width = job.hosts[host].z_width
        self.set_codecs(codecs or job.tuning().codecs)

    def set_codecs(self, codecs: Codecs) -> None:
        """Use these codecs from now on; raises ConfigError for an unknown name."""
        names = {
            Kind.ACTIVATION: codecs.activation,
            Kind.DERIVATIVE: codecs.derivative,
            Kind.TEST_ACTIVATION: codecs.evaluation,
        }
        self._codecs = {kind: find_codec(name, "codec") for kind, name in names.items()}
        self._exact = {kind for kind, name in names.items() if name == "fp32"}

    def is_exact(self, kind: Kind) -> bool:
        """Whether the peer receives tensors of this kind without loss."""
        return kind in self._exact

    def specs(self, *kinds: Kind) -> dict[Kind, TensorSpec]:
        """The largest tensors that a peer may send of these kinds."""
        rows, width = self._batch_size, self._width
        return {
            kind: TensorSpec(rows, width)
            if kind in self._exact
            else TensorSpec(self._codecs[kind].max_bytes(rows, width), 1, torch.uint8)
            for kind in kinds
        }

    def pack(self, message: Message) -> Message:
        """The message with its tensor encoded.

        Raises NonFiniteError for NaN or Inf, which codecs cannot represent.
        """
        x_BD = message.tensor
        assert x_BD is not None
        # Row-major, like the peer's copy and a checkpoint's: sums over another memory layout may
        # differ in the last bit.
        x_BD = x_BD.detach().contiguous()
        if message.kind in self._exact:
            return replace(message, tensor=x_BD)
        with self._spans.record("encode"):
            check_finite(x_BD, message.kind.name, message.round)
            codec = self._codecs[message.kind]
            payload = codec.encode(x_BD, self._generator(message, x_BD.device))
            total = None if x_BD.device.type == "cpu" else x_BD.sum(dtype=torch.float64)
            return replace(message, tensor=payload.reshape(-1, 1), total=total)

    def unpack(self, message: Message, rows: int, device: torch.device = _CPU) -> Tensor:
        """Decode the tensor of a message, which must have `rows` rows, for use on a device.

        Raises ProtocolError or ShapeError for bytes that do not decode to that shape, and
        NonFiniteError for NaN or Inf.
        """
        if message.kind in self._exact:
            return to_device(require_rows(message, rows), device)
        if message.tensor is None:
            raise ProtocolError(f"{message.described}: expected a tensor, got none")
        # A party of the same process may have sent it from another GPU.
        with self._spans.record("encode"), current(message.tensor.device):
            try:
                codec, payload = self._codecs[message.kind], message.tensor.reshape(-1)
                # On a GPU numbers cannot be checked without waiting for it. Those that are surely
                # finite are copied there as they came, and decoded there.
                is_moved = payload.device.type == "cpu" != device.type
                if is_moved and codec.bound(payload, rows, self._width) < _MAX:
                    return codec.decode(to_device(payload, device), rows, self._width)
                x_BD = codec.decode(payload, rows, self._width)
            except ProtocolError as error:
                raise type(error)(f"{message.described}: {error}") from error
            check_finite(
                x_BD, f"{message.kind.name} from {message.sender or 'a peer'}", message.round
            )
            return to_device(x_BD, device)

    def _generator(self, message: Message, device: torch.device) -> torch.Generator:
        """A generator for stochastic rounding, seeded by (seed, host, kind, round, part)."""
        key = f"{self._seed} {self._host} {message.kind} {message.round} {message.part}"
        digest = hashlib.blake2b(key.encode(), digest_size=8, person=b"celu.noise").digest()
        generator = torch.Generator(device)
        return generator.manual_seed(int.from_bytes(digest, "little") >> 1)


def unpack_all(
    codings: Iterable[Coding],
    messages: Sequence[Message],
    batch: Batch,
    rows: int,
    device: torch.device = _CPU,
) -> list[Tensor]:
    """Decode the tensors of all hosts, which must be of the rows of this batch."""
    for message in messages:
        check_same_rows(message, batch)
    return [c.unpack(message, rows, device) for c, message in zip(codings, messages, strict=True)]
