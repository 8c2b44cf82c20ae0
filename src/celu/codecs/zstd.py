"""Whatever another codec makes, compressed without loss: pays where many numbers are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from celu.codecs.codec import Codec
from celu.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from types import ModuleType

_LEAST_WINDOW = 1024  # of the format
_LEVEL = 1  # higher ones gain little on numbers, and cost more than the wire


class Zstd:
    """Another codec's bytes through zstd; raises ConfigError where zstandard is not installed."""

    def __init__(self, inner: Codec) -> None:
        self._inner = inner
        self._zstd = _library()

    def max_bytes(self, rows: int, width: int) -> int:
        """See `Codec`. What cannot be compressed grows a little: the bound of zstd's own manual."""
        size = self._inner.max_bytes(rows, width)
        return size + (size >> 8) + 64 + max(0, (128 * 1024 - size) >> 11)

    def encode(self, x_BD: Tensor, noise: torch.Generator) -> Tensor:
        """See `Codec`."""
        plain = self._inner.encode(x_BD, noise).cpu().numpy()
        packed = self._zstd.ZstdCompressor(level=_LEVEL).compress(plain.data)
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8)

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """See `Codec`. Never more than the shape allows is unpacked."""
        most = self._inner.max_bytes(rows, width)
        data = payload.cpu().numpy().tobytes()
        try:
            if not 0 <= self._zstd.frame_content_size(data) <= most:  # -1: it does not say
                raise ProtocolError(
                    f"expected at most {most} bytes of a tensor, got a claim of more, or none"
                )
            # A frame also asks for a window, up to 128 MiB of it; none needs more than its content.
            unpacking = self._zstd.ZstdDecompressor(max_window_size=max(_LEAST_WINDOW, most))
            plain = unpacking.decompress(data, max_output_size=most, allow_extra_data=False)
        except self._zstd.ZstdError as error:
            raise ProtocolError("expected a tensor compressed with zstd") from error
        unpacked = torch.frombuffer(bytearray(plain), dtype=torch.uint8) if plain else payload[:0]
        return self._inner.decode(unpacked, rows, width)


def _library() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            'codec: expected the package zstandard for a codec with "+zstd", which is not '
            'installed here: pip install "celu[zstd]"'
        ) from error
    library: ModuleType = zstandard
    return library
