"""The codecs by their names in the contract."""

from __future__ import annotations

import torch

from celu.codecs.casts import Cast, ScaledFloat16
from celu.codecs.codec import Codec
from celu.codecs.quantizers import RotatedQuantizer, RowQuantizer
from celu.codecs.zstd import Zstd
from celu.errors import ConfigError

CODECS: dict[str, Codec] = {
    "fp32": Cast(torch.float32),
    "bf16": Cast(torch.bfloat16),
    "fp16": ScaledFloat16(),
    "int8": RowQuantizer(8),
    "4bit": RotatedQuantizer(4),
    "2bit": RotatedQuantizer(2),
}
ZSTD = "+zstd"


def find_codec(name: str, what: str) -> Codec:
    """A codec by name; a name that ends in "+zstd" adds lossless compression.

    Raises ConfigError, whose message starts with `what`, for an unknown name.
    """
    plain = name.removesuffix(ZSTD)
    if plain not in CODECS:
        raise ConfigError(
            f'{what}: expected one of {", ".join(CODECS)}, optionally with "{ZSTD}", got {name!r}'
        )
    return Zstd(CODECS[plain]) if name.endswith(ZSTD) else CODECS[plain]
