"""Encodes and decodes Z for models in use, with the codec of the serving contract.

Rounding is to nearest, so the Z of a row is the same however often it is sent.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from celu.codecs.registry import find_codec
from celu.errors import ProtocolError
from celu.transport.message import Message, TensorSpec, require_rows
from celu.transport.wire import is_finite, not_finite


class ServingCoding:
    """The codec of one host's Z, of up to `max_rows` rows."""

    def __init__(self, codec: str, width: int, max_rows: int) -> None:
        self._codec = find_codec(codec, "codec")
        self._is_exact = codec == "fp32"
        self._width = width
        self._max_rows = max_rows

    def spec(self) -> TensorSpec:
        """The largest tensor that a host may send."""
        if self._is_exact:
            return TensorSpec(self._max_rows, self._width)
        return TensorSpec(self._codec.max_bytes(self._max_rows, self._width), 1, torch.uint8)

    def pack(self, message: Message) -> Message:
        """The message with its tensor encoded; raises NonFiniteError for NaN or Inf."""
        assert message.tensor is not None
        if self._is_exact:
            z_BD = message.tensor.contiguous()
            return message if z_BD is message.tensor else replace(message, tensor=z_BD)
        z_BD = message.tensor.detach().contiguous().cpu()
        if not is_finite(z_BD):
            raise not_finite(message.described)
        return replace(message, tensor=self._codec.encode(z_BD, None).reshape(-1, 1))

    def unpack(self, message: Message, rows: int) -> Tensor:
        """Decode the tensor of a message, which must have `rows` rows.

        Raises ProtocolError or ShapeError for bytes that do not decode to that shape, and
        NonFiniteError for NaN or Inf.
        """
        if self._is_exact:
            return require_rows(message, rows)
        if message.tensor is None:
            raise ProtocolError(f"{message.described}: expected a tensor, got none")
        try:
            z_BD = self._codec.decode(message.tensor.reshape(-1), rows, self._width)
        except ProtocolError as error:
            raise type(error)(f"{message.described}: {error}") from error
        if not is_finite(z_BD):
            raise not_finite(message.described)
        return z_BD
