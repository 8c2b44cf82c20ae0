"""One party's part of a trained model, in memory: Z of rows at any party, scores at the guest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from celu.config.schema import StoreSchema
from celu.data.dataset import Batch, Dataset
from celu.errors import DataError, ModelError
from celu.models.losses import to_scores
from celu.models.user_code import bottom_of, call_bottom, call_top, describe

if TYPE_CHECKING:
    from celu.serving.model_folder import ModelFacts


@dataclass(frozen=True)
class Model:
    """A party's modules, in evaluation mode, and what an exported model says about them."""

    facts: ModelFacts
    bottom: nn.Module | None
    top: nn.Module | None
    schema: StoreSchema | None
    device: torch.device

    @property
    def name(self) -> str:
        """The model's name, the same at all parties."""
        return self.facts.name

    def check_rows(self, dataset: Dataset, where: str) -> None:
        """Raise DataError unless rows have the inputs, columns and codes of this model."""
        expected = {n: (spec.shape, spec.dtype) for n, spec in self.facts.input_specs.items()}
        got = {
            name: (list(tensor.shape[1:]), "float32" if tensor.is_floating_point() else "int64")
            for name, tensor in dataset.inputs.items()
        }
        if got != expected and expected:
            raise DataError(
                f"{where}: expected the inputs of model {self.name}, {_describe(expected)}, "
                f"got {_describe(got)}"
            )
        sizes = {name: list(sizes) for name, sizes in dataset.sizes.items()}
        if expected and sizes != self.facts.sizes:
            raise DataError(
                f"{where}: expected codes as in training; encode the rows with "
                '"celu prepare --like STORE", where STORE is the store of the training rows'
            )

    def activations(self, batch: Batch) -> Tensor:
        """Z of some rows, [B, width]; raises ModelError for another shape, or no bottom."""
        if self.bottom is None:
            raise ModelError(f"{self.facts.party}: model {self.name} has no bottom model here")
        with torch.no_grad():
            z_BD = call_bottom(self.facts.party, self.bottom, batch.to(self.device).inputs)
        rows, width = next(iter(batch.inputs.values())).shape[0], self.facts.z_width
        if z_BD.shape[:1] != (rows,) or (width is not None and z_BD.shape != (rows, width)):
            what = bottom_of(self.facts.party, self.bottom)
            raise ModelError(
                f"{what} must return Z of [{rows}, {width or 'width'}], got {list(z_BD.shape)}; it "
                f"got {describe(batch.inputs)}"
            )
        return z_BD

    def scores(self, batch: Batch | None, z_of_hosts: Sequence[Tensor]) -> Tensor:
        """Predictions at the guest, float64 on the CPU: [B], or [B, K] probabilities of classes.

        `batch` are the guest's own rows, None for a guest without features. `z_of_hosts` is in the
        order of `facts.hosts`.
        """
        return self.top_scores(self.own_z(batch), z_of_hosts)

    def own_z(self, batch: Batch | None) -> list[Tensor]:
        """The guest's own Z, for `top_scores`; none at a guest without features."""
        if self.bottom is None:
            return []
        if batch is None:
            raise ModelError(f"{self.facts.party}: expected the guest's own rows, got none")
        return [self.activations(batch)]

    def top_scores(self, own_z: Sequence[Tensor], z_of_hosts: Sequence[Tensor]) -> Tensor:
        """The scores of rows whose own Z is known; see `scores`."""
        if self.top is None or self.facts.output is None:
            raise ModelError(f"{self.facts.party}: model {self.name} has no top model here")
        self._check_z([*own_z, *z_of_hosts], len(own_z))
        with torch.no_grad():
            zs = [*own_z, *(z.to(self.device) for z in z_of_hosts)]
            output = call_top(self.facts.party, self.top, zs)
        return to_scores(self.facts.label_map.in_own_units(output.cpu()), self.facts.output)

    def _check_z(self, zs: Sequence[Tensor], num_own: int) -> None:
        """Raise ModelError unless each host's Z has its width, and all have the same rows."""
        rows = zs[0].shape[0] if zs else 0
        expected = [[rows, width] for width in self.facts.hosts.values()]
        got = [list(z.shape) for z in zs[num_own:]]
        if got != expected:
            raise ModelError(
                f"{self.facts.party}: expected Z of {', '.join(self.facts.hosts)} with shapes "
                f"{expected}, got {got}"
            )

    def fallback_z(self, rows: int) -> Mapping[str, Tensor]:
        """Each host's mean Z in place of rows that it lacks, [rows, width]."""
        return {
            host: torch.tensor(mean_z).expand(rows, -1).contiguous()
            for host, mean_z in self.facts.mean_z.items()
        }


def _describe(inputs: Mapping[str, tuple[list[int], str]]) -> str:
    """Inputs with the shape of a row, such as "ids [3] int64"."""
    return ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in inputs.items()) or "none"
