"""Standard normal numbers that only the owner of a key can know.

They follow from the key, from where the noise is used (kind, peer, round, part) and from the tensor
that it is added to. So a run that resumes sends the same bytes again, which tells a peer nothing
new, and noise is never added to two different tensors, whose difference would show both.

The bits are those of SHAKE128, a cryptographic hash: PyTorch's generator for the CPU has 2^32
sequences, which a peer could try. Numbers have 64 bits, so that rounding a sum to 32 hides which of
them can occur (Mironov, CCS 2012).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from celu.privacy.secret_key import SecretKey

_STEP = 2.0**-53


def secret_normal(key: SecretKey, where: str, x_BD: Tensor) -> Tensor:
    """Normal numbers of the shape of a tensor, in main memory: float64, mean 0, deviation 1."""
    digest = hashlib.blake2b(key=key.secret, digest_size=32, person=b"celu.noise")
    digest.update(f"{where} {tuple(x_BD.shape)} {x_BD.dtype}\0".encode())
    digest.update(np.ascontiguousarray(x_BD.detach().cpu().numpy()).data)
    numbers = _normal(digest.digest(), x_BD.numel())
    return torch.from_numpy(numbers).reshape(x_BD.shape)


def _normal(seed: bytes, count: int) -> npt.NDArray[np.float64]:
    """Box and Muller's two normal numbers from each pair of uniform ones."""
    pairs = (count + 1) // 2
    words = np.frombuffer(hashlib.shake_128(seed).digest(16 * pairs), "<u8")
    uniform = (words >> np.uint64(11)) * _STEP  # 53 bits, below 1
    length = np.sqrt(-2 * np.log1p(-uniform[:pairs]))
    angle = 2 * np.pi * uniform[pairs:]
    return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]
