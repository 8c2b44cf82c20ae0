"""Between the engine's tensors and the messages that carry them: the contract's codecs.

Whoever sends goes on with what the other side will decode, so that both cache the same numbers.
What is sent exactly, in float32, goes as it is: a link looks at it for NaN and Inf, and its thread
copies it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from celu.codecs.named import find_codec
from celu.config.job import Codecs, Job
from celu.engine.spans import Spans
from celu.errors import ProtocolError
from celu.transport.message import Kind, Message, TensorSpec, require_rows
from celu.transport.wire import check_finite


class Coding:
    """The tensors that travel between the guest and one host."""

    def __init__(
        self, job: Job, host: str, codecs: Codecs | None = None, spans: Spans | None = None
    ) -> None:
        self._spans = spans or Spans()
        self._seed = job.seed
        self._host = host
        self._batch_size = job.batch_size
        self._width = job.hosts[host].z_width
        self.use(codecs or job.tuning().codecs)

    def use(self, codecs: Codecs) -> None:
        """Go on with these codecs; raises ConfigError for a name that is none."""
        names = {
            Kind.ACTIVATION: codecs.activation,
            Kind.DERIVATIVE: codecs.derivative,
            Kind.TEST_ACTIVATION: codecs.evaluation,
        }
        self._codecs = {kind: find_codec(name, "codec") for kind, name in names.items()}
        self._exact = {kind for kind, name in names.items() if name == "fp32"}

    def specs(self, *kinds: Kind) -> dict[Kind, TensorSpec]:
        """What may arrive of these kinds: so many bytes, and no more."""
        rows, width = self._batch_size, self._width
        return {
            kind: TensorSpec(rows, width)
            if kind in self._exact
            else TensorSpec(self._codecs[kind].max_bytes(rows, width), 1, torch.uint8)
            for kind in kinds
        }

    def pack(self, message: Message) -> tuple[Message, Tensor]:
        """A message with its tensor encoded, and the tensor as it will be decoded.

        Raises NonFiniteError where it holds NaN or Inf: no code stands for them.
        """
        x_BD = message.tensor
        assert x_BD is not None
        # Laid out row by row, as the other side and a checkpoint have it: sums over another
        # layout may differ in the last bit.
        x_BD = x_BD.detach().contiguous()
        if message.kind in self._exact:
            return replace(message, tensor=x_BD), x_BD
        with self._spans.doing("encode"):
            check_finite(x_BD, message.kind.name, message.round)
            codec = self._codecs[message.kind]
            payload = codec.encode(x_BD, self._noise(message, x_BD.device))
            total = None if x_BD.device.type == "cpu" else x_BD.sum()
            packed = replace(message, tensor=payload.reshape(-1, 1), total=total)
            return packed, codec.decode(payload, *x_BD.shape).to(x_BD.device)

    def unpack(self, message: Message, rows: int) -> Tensor:
        """The tensor of a message, of so many rows.

        Raises ProtocolError or ShapeError for bytes that are no such tensor, NonFiniteError for
        NaN or Inf.
        """
        if message.kind in self._exact:
            return require_rows(message, rows)
        where = f"{message.kind.name} of round {message.round}"
        if message.tensor is None:
            raise ProtocolError(f"{where}: expected a tensor, got none")
        with self._spans.doing("encode"):
            try:
                codec = self._codecs[message.kind]
                x_BD = codec.decode(message.tensor.reshape(-1), rows, self._width)
            except ProtocolError as error:
                raise type(error)(f"{where}: {error}") from error
            check_finite(x_BD, f"{message.kind.name} from a peer", message.round)
            return x_BD

    def _noise(self, message: Message, device: torch.device) -> torch.Generator:
        """For rounding, from (seed, host, kind, round, part)."""
        key = f"{self._seed} {self._host} {message.kind} {message.round} {message.part}"
        digest = hashlib.blake2b(key.encode(), digest_size=8, person=b"celu.noise").digest()
        generator = torch.Generator(device)
        return generator.manual_seed(int.from_bytes(digest, "little") >> 1)
