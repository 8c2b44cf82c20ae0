"""A model for the few rows of an online request, from arrays to scores.

For a few rows most of the time is what each operation costs besides computing. So small built-in
models run with NumPy. Predictions of files use `model`, whose bits are those of training; these
scores are within 1e-5.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from celu.data.dataset import Batch
from celu.errors import ModelError
from celu.models.numpy_forward import numpy_bottom, numpy_scores, numpy_top
from celu.serving.model import Model
from celu.serving.row_index import Arrays

Array = npt.NDArray[Any]
MAX_FEW = 64  # rows; for more, PyTorch is as fast


class FewRows:
    """Computes as `model` does: with NumPy where it can, for at most MAX_FEW rows.

    Call it in `np.errstate(all="ignore")`, once for all steps of a request, and check the result:
    NumPy warns of Inf and NaN.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        on_cpu = model.device.type == "cpu"
        self._bottom = numpy_bottom(model.bottom) if on_cpu else None
        self._top = numpy_top(model.top) if on_cpu else None
        self._kind = model.facts.output
        self._label_map = model.facts.label_map
        self._widths = list(model.facts.hosts.values())

    def is_quick(self, num_rows: int) -> bool:
        """Whether its own Z of this many rows takes microseconds."""
        return num_rows <= MAX_FEW and (self._bottom is not None or self._model.bottom is None)

    def activations(self, inputs: Arrays) -> Array:
        """See `Model.activations`; float32."""
        num_rows = len(next(iter(inputs.values())))
        if self._bottom is None or num_rows > MAX_FEW:
            z_BD = self._model.activations(to_batch(inputs))
            return z_BD.float().cpu().contiguous().numpy()
        return self._bottom(inputs)

    def own_z(self, inputs: Arrays | None) -> list[Array]:
        """See `Model.own_z`."""
        if self._model.bottom is None:
            return []
        if inputs is None:
            raise ModelError(f"model {self._model.name}: expected the guest's own rows, got none")
        return [self.activations(inputs)]

    def scores(self, own_z: Sequence[Array], z_of_hosts: Sequence[Array]) -> list[Any]:
        """See `Model.top_scores`; as Python numbers."""
        zs = [*own_z, *z_of_hosts]
        num_rows = len(zs[0]) if zs else 0
        if self._top is None or self._kind is None or num_rows > MAX_FEW:
            return self._torch_scores(own_z, z_of_hosts)
        for z, width in zip_longest(z_of_hosts, self._widths):
            if z is None or z.shape != (num_rows, width):
                return self._torch_scores(own_z, z_of_hosts)  # which says what does not fit
        output = self._top(zs)
        if self._label_map.is_scaled:
            output = output.astype(np.float64) * self._label_map.deviation + self._label_map.mean
        return numpy_scores(output, self._kind)

    def _torch_scores(self, own_z: Sequence[Array], z_of_hosts: Sequence[Array]) -> list[Any]:
        tensors = [[torch.from_numpy(z) for z in some] for some in (own_z, z_of_hosts)]
        scores: list[Any] = self._model.top_scores(*tensors).tolist()
        return scores


def to_batch(inputs: Arrays) -> Batch:
    """Inputs as tensors, codes as int64."""
    tensors = {}
    for name, array in inputs.items():
        is_code = np.issubdtype(array.dtype, np.integer)
        tensors[name] = torch.from_numpy(array.astype(np.int64 if is_code else np.float32))
    num_rows = len(next(iter(inputs.values())))
    return Batch(tensors, None, np.zeros((num_rows, 0), np.uint8))


def to_arrays(batch: Batch) -> Arrays:
    """The inputs of a batch as arrays."""
    return {name: tensor.numpy() for name, tensor in batch.inputs.items()}
