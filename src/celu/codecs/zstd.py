"""Lossless compression on top of another codec; useful if many values are equal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from celu.codecs.codec import Codec
from celu.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from types import ModuleType

_MIN_WINDOW = 1024  # of the zstd format
_LEVEL = 1  # higher levels gain little on numbers and take longer than the transfer


class Zstd:
    """Compresses another codec's bytes; raises ConfigError if zstandard is not installed."""

    def __init__(self, inner: Codec) -> None:
        self._inner = inner
        self._zstd = _library()

    def max_bytes(self, rows: int, width: int) -> int:
        """See `Codec`. Incompressible data grows a little: this is ZSTD_compressBound."""
        size = self._inner.max_bytes(rows, width)
        return size + (size >> 8) + 64 + max(0, (128 * 1024 - size) >> 11)

    def encode(self, x_BD: Tensor, generator: torch.Generator | None) -> Tensor:
        """See `Codec`."""
        plain = self._inner.encode(x_BD, generator).cpu().numpy()
        packed = self._zstd.ZstdCompressor(level=_LEVEL).compress(plain.data)
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8)

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """See `Codec`. Never decompresses more than the shape allows."""
        max_bytes = self._inner.max_bytes(rows, width)
        data = payload.cpu().numpy().tobytes()
        try:
            if not 0 <= self._zstd.frame_content_size(data) <= max_bytes:  # -1: not declared
                raise ProtocolError(
                    f"expected a zstd frame that declares at most {max_bytes} bytes, got one that "
                    "declares more or no size"
                )
            # A frame also requests a window of up to 128 MiB; more than its content is not needed.
            decompressor = self._zstd.ZstdDecompressor(max_window_size=max(_MIN_WINDOW, max_bytes))
            plain = decompressor.decompress(data, max_output_size=max_bytes, allow_extra_data=False)
        except self._zstd.ZstdError as error:
            raise ProtocolError(
                "expected a tensor compressed with zstd, got other bytes"
            ) from error
        inner = torch.frombuffer(bytearray(plain), dtype=torch.uint8) if plain else payload[:0]
        return self._inner.decode(inner, rows, width)

    def bound(self, payload: Tensor, rows: int, width: int) -> float:
        """See `Codec`: it is not known before the bytes are decompressed."""
        del payload, rows, width
        return math.inf


def _library() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            'codec: a codec with "+zstd" needs the package zstandard, which is not installed: '
            'pip install "celu[zstd]"'
        ) from error
    library: ModuleType = zstandard
    return library
