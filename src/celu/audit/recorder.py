"""Records the messages of the audited rows during training, in bounded memory.

It keeps tensors of one party in its own memory and checkpoints; nothing is sent. What is rolled
back by `auto` stays recorded: the peer has seen it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from celu.audit.sample import RowSample
from celu.data.tags import Tags
from celu.errors import CheckpointError

RECORDED = "audit."  # of its tensors in a checkpoint
_HELD_OUT = "held_out."


class Recorder:
    """The newest exposures of the rows of a sample: one tensor [rows, exposures, width] a name.

    Names that start with `latest.` keep only the newest exposure.
    """

    def __init__(self, sample: RowSample, exposures: int) -> None:
        self.sample = sample
        self._exposures = exposures
        self._counts = torch.zeros(len(sample), dtype=torch.int64)  # exposures so far
        self._tensors: dict[str, Tensor] = {}
        self._held_out: dict[str, Tensor] = {}

    def find(self, tags: Tags) -> tuple[Tensor, Tensor]:
        """The positions of sampled rows in a batch, and their slots."""
        positions, slots = self.sample.find(tags)
        return torch.from_numpy(positions), torch.from_numpy(slots)

    def add(self, slots: Tensor, values: Mapping[str, Tensor]) -> None:
        """Record one exposure of the rows in these slots: values [rows, width] by name."""
        for name, value in values.items():
            rows = value.detach().reshape(len(slots), -1).float().cpu()
            depth = 1 if name.startswith("latest.") else self._exposures
            if name not in self._tensors:
                self._tensors[name] = torch.zeros(len(self.sample), depth, rows.shape[1])
            self._tensors[name][slots, self._counts[slots] % depth] = rows
        self._counts[slots] += 1

    def add_held_out(self, start: int, values: Mapping[str, Tensor]) -> None:
        """Record values of held-out rows from `start` on; those of an earlier evaluation go."""
        if start == 0:
            self._held_out = {}
        for name, value in values.items():
            rows = value.detach().reshape(len(value), -1).float().cpu()
            earlier = self._held_out.get(name, rows[:0])
            self._held_out[name] = torch.cat([earlier, rows])[: len(self.sample)]

    @property
    def is_exposed(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether the row in each slot has been exposed."""
        return (self._counts > 0).numpy()

    @property
    def counts(self) -> Tensor:
        """How many exposures of each row are recorded."""
        return self._counts.clamp(max=self._exposures)

    def exposures(self, name: str) -> Tensor:
        """What was recorded under a name, [rows, exposures, width], the newest exposure first.

        Where a row has fewer exposures, the rest is zero.
        """
        stored = self._tensors[name]
        depth = stored.shape[1]
        newest = (self._counts[:, None] - 1 - torch.arange(depth)) % depth
        found = stored.gather(1, newest[..., None].expand(-1, -1, stored.shape[2]))
        is_recorded = torch.arange(depth) < self._counts[:, None].clamp(max=depth)
        return found * is_recorded[..., None]

    def held_out(self, name: str) -> Tensor | None:
        """What the last evaluation recorded under a name, [rows, width]."""
        return self._held_out.get(name)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy, for a checkpoint."""
        tensors = {
            "sample": torch.tensor(list(self.sample.digest), dtype=torch.uint8),
            "canaries": torch.tensor(self.sample.num_canaries),
            "counts": self._counts.clone(),
            **{f"rows.{name}": tensor.clone() for name, tensor in self._tensors.items()},
            **{f"{_HELD_OUT}{name}": tensor for name, tensor in self._held_out.items()},
        }
        return {RECORDED + name: tensor for name, tensor in tensors.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what a checkpoint has, names without the prefix; raises CheckpointError.

        A checkpoint without an audit leaves the recorder empty.
        """
        if not tensors:
            if self.sample.num_canaries:
                raise _changed("canaries: expected the 0 that the run started with")
            return
        tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
        sample, counts = tensors.get("sample"), tensors.get("counts")
        if sample is None or bytes(sample.flatten().tolist()) != self.sample.digest:
            raise _changed("expected the audit.key, rows and canaries that the run started with")
        if counts is None or counts.shape != self._counts.shape or counts.dtype != torch.int64:
            raise _changed("expected one count for each row")
        rows = _with_prefix(tensors, "rows.")
        for name, tensor in rows.items():
            depth = 1 if name.startswith("latest.") else self._exposures
            if tensor.dim() != 3 or tensor.shape[:2] != (len(self.sample), depth):
                raise _changed("expected the exposures that the run started with")
        self._counts = counts.clone()
        self._tensors = {name: tensor.float() for name, tensor in rows.items()}
        self._held_out = _with_prefix(tensors, _HELD_OUT)


def load_recorded(recorder: Recorder | None, tensors: Mapping[str, Tensor]) -> None:
    """Load what a checkpoint has recorded; a run without an audit drops it.

    Raises CheckpointError if the audit has changed, or was removed from a run with canaries.
    """
    if recorder is not None:
        recorder.load_state_dict(tensors)
        return
    canaries = tensors.get("canaries")
    if canaries is not None and bool(canaries.any()):
        raise _changed("canaries: expected those that the run started with, got no [audit]")


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _changed(what: str) -> CheckpointError:
    return CheckpointError(
        f"the audit has changed since the run started: {what}; restore [audit] in party.toml and "
        "audit.key in the run folder, or start a new run with another --out at all parties"
    )
