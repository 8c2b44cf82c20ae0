"""The codecs by the names that a contract gives them."""

from __future__ import annotations

import torch

from celu.codecs.casts import Cast
from celu.codecs.codec import Codec
from celu.codecs.levels import RotatedLevels, RowLevels
from celu.codecs.zstd import Zstd
from celu.errors import ConfigError

CODECS: dict[str, Codec] = {
    "fp32": Cast(torch.float32),
    "bf16": Cast(torch.bfloat16),
    "fp16": Cast(torch.float16),
    "int8": RowLevels(8),
    "4bit": RotatedLevels(4),
    "2bit": RotatedLevels(2),
}
ZSTD = "+zstd"


def find_codec(name: str, what: str) -> Codec:
    """The codec of a name, with "+zstd" behind it for one that is compressed as well.

    Raises ConfigError, naming `what` asked for it.
    """
    plain = name.removesuffix(ZSTD)
    if plain not in CODECS:
        raise ConfigError(
            f'{what}: expected one of {", ".join(CODECS)}, each also with "{ZSTD}", got {name!r}'
        )
    return Zstd(CODECS[plain]) if name.endswith(ZSTD) else CODECS[plain]
