"""The built-in models as NumPy functions, for a few rows at a time.

PyTorch spends microseconds on each operation, whatever its size, and releases Python's interpreter
lock in each. For single rows of a small model that is most of the time. The result differs from
PyTorch's by rounding only. Models with large layers, and modules of users, have no such function.
Extreme values become Inf or NaN, as in PyTorch; NumPy warns of it, unless called in `np.errstate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from celu.metrics.names import Output
from celu.models.tops import InnerProductTop, WideDeepTop
from celu.models.tower import FieldEmbedding, Tower

Array = npt.NDArray[Any]
Forward = Callable[[Array], Array]
Bottom = Callable[[dict[str, Array]], Array]
Top = Callable[[list[Array]], Array]

_ZERO = np.zeros((), np.float32)  # quicker than a Python number
_MAX_WEIGHTS = 2**16  # of a layer: for a larger one, what an operation costs besides matters less


def numpy_bottom(module: nn.Module | None) -> Bottom | None:
    """A bottom model as a function of its inputs by name; None if it has no such function."""
    if type(module) is not Tower or not _is_plain(module):
        return None
    layers = _layers(module.layers)
    if layers is None:
        return None
    offsets: dict[str, Array] = {}
    tables: dict[str, Array] = {}
    is_mean: dict[str, bool] = {}
    for name, embedding in module.embeddings.items():
        assert isinstance(embedding, FieldEmbedding)  # as a Tower makes them
        offsets[name] = embedding.offsets.numpy().reshape(1, -1)
        tables[name] = embedding.table.weight.detach().numpy()
        is_mean[name] = embedding.pooling == "mean"
    names = module.names

    def forward(inputs: dict[str, Array]) -> Array:
        parts = []
        for name in names:
            part = inputs[name]
            if name in tables and part.ndim == 3:
                part = _pool(part, tables[name], offsets[name], is_mean[name])
            elif name in tables:
                # Converted first: a sum of two types takes twice as long as both steps.
                rows = part.astype(np.int64) + offsets[name]
                part = tables[name].take(rows, axis=0).reshape(len(part), -1)
            parts.append(part)
        return layers(np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0])

    return forward


def _pool(bags_BFN: Array, table: Array, offsets: Array, is_mean: bool) -> Array:
    """See `FieldEmbedding.forward`."""
    is_value = (bags_BFN > 0)[..., np.newaxis]
    rows = bags_BFN.astype(np.int64) + offsets[..., np.newaxis]
    pooled: Array = (table.take(rows, axis=0) * is_value).sum(axis=2)
    if is_mean:
        pooled /= np.maximum(is_value.sum(axis=2), 1)
    return pooled.reshape(len(bags_BFN), -1)


def numpy_top(module: nn.Module | None) -> Top | None:
    """A top model as a function of all Z, in their order; None if it has no such function."""
    if type(module) is InnerProductTop and _is_plain(module):
        return _inner_product
    if type(module) is not WideDeepTop or not _is_plain(module):
        return None
    layers = _layers(module.layers)
    if layers is None:
        return None
    return lambda zs: layers(np.concatenate(zs, axis=1) if len(zs) > 1 else zs[0])


def numpy_scores(output: Array, kind: Output) -> list[Any]:
    """See `losses.to_scores`; as Python numbers."""
    scores: list[Any]
    if kind == "binary":
        scores = [_sigmoid(logit) for logit in output.reshape(-1).tolist()]
    elif kind == "multiclass":
        logits = output.astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = (powers / powers.sum(axis=1, keepdims=True)).tolist()
    else:
        scores = (output.reshape(-1) if output.size == len(output) else output).tolist()
    return scores


def _sigmoid(logit: float) -> float:
    power = math.exp(-abs(logit))  # at most 1
    return (1.0 if logit >= 0 else power) / (1.0 + power)


def _inner_product(zs: list[Array]) -> Array:
    guest, *hosts = zs
    return np.asarray((guest * sum(hosts)).sum(axis=1))


def _layers(layers: nn.Module) -> Forward | None:
    """Linear layers and ReLU in a row."""
    if type(layers) is not nn.Sequential:
        return None
    weights: list[Array | None] = []  # None is a ReLU
    for layer in layers:
        if type(layer) is nn.ReLU:
            weights.append(None)
        elif type(layer) is nn.Linear and layer.bias is None:
            if layer.weight.numel() > _MAX_WEIGHTS:
                return None
            weights.append(layer.weight.detach().numpy().T)
        else:
            return None

    def forward(x: Array) -> Array:
        for weight in weights:
            # `dot` is quicker than `@` for a few rows.
            x = np.maximum(x, _ZERO) if weight is None else x.dot(weight)
        return x

    return forward


def _is_plain(module: nn.Module) -> bool:
    """Whether it has float32 weights in main memory, and no hooks."""
    return all(
        parameter.dtype == torch.float32 and parameter.device.type == "cpu"
        for parameter in module.parameters()
    ) and not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
