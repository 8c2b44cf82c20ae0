"""Randomized response: labels that may differ from the true ones, and how to learn from them.

A row keeps its label with probability e^epsilon / (e^epsilon + K - 1), and else gets one of the
other K - 1 classes, all alike (Warner 1965; K classes: Kairouz, Bonawitz and Ramage 2016). That is
epsilon label differential privacy for whatever is computed from the new labels, however often.

The choice is a keyed hash of the row's tag, so a row has the same randomized label each time. It
also depends on epsilon, on K and on the digest of all labels: two releases that shared choices
would reveal more than the sum of their epsilons, such as which rows were relabelled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from celu.config.schema import ClassLabel
from celu.data.dataset import Dataset
from celu.data.labelled_rows import LabelledRows
from celu.models.losses import LOSSES, Loss, PerInstance
from celu.privacy.secret_key import SecretKey

_CHUNK = 1 << 16


def digest_labels(key: SecretKey, rows: LabelledRows, classes: Sequence[ClassLabel] | None) -> str:
    """Identifies labels to whoever has the key: rows, labels, and the order of the classes."""
    digest = hashlib.blake2b(key=key.secret, digest_size=16, person=b"celu.label.rows")
    digest.update(rows.digest + repr(tuple(classes or ())).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class RandomizedResponse:
    """The probabilities of K classes at one epsilon."""

    epsilon: float
    num_classes: int

    @property
    def keep(self) -> float:
        """The probability that a row keeps its label."""
        return 1 / (1 + (self.num_classes - 1) * math.exp(-self.epsilon))

    @property
    def other(self) -> float:
        """The probability of each other class; q, where there are two."""
        return math.exp(-self.epsilon) * self.keep

    def randomize(
        self, rows: Dataset, part: str, codes: Tensor, key: SecretKey, labels: str
    ) -> Tensor:
        """The randomized codes of the rows of a part: training, validation or test rows.

        `codes` are the true ones; `labels` is the digest of all labels that belong together. A row
        without a tag is known by its part and number.
        """
        result = codes.detach().cpu().numpy().astype(np.int64)
        threshold = round((1 - self.keep) * 2**64)
        what = f"{labels} {'' if rows.tags is not None else part}"
        for start in range(0, len(result), _CHUNK):
            chunk = result[start : start + _CHUNK]
            choices, shifts = self._hash(rows.take_tags(start, start + len(chunk)), what, key)
            moved = (chunk + 1 + (shifts % np.uint64(self.num_classes - 1)).astype(np.int64)) % (
                self.num_classes
            )
            result[start : start + _CHUNK] = np.where(choices < threshold, moved, chunk)
        return torch.from_numpy(result).to(codes.dtype)

    def _hash(
        self, tags: npt.NDArray[np.uint8], what: str, key: SecretKey
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Two independent 64-bit numbers for each tag: whether it changes, and to which class."""
        hash_ = hashlib.blake2b(key=key.secret, digest_size=16, person=b"celu.label.flip")
        hash_.update(f"{self.epsilon!r} {self.num_classes} {what}\0".encode())
        digests = []
        for tag in tags:
            own = hash_.copy()
            own.update(tag.tobytes())
            digests.append(own.digest())
        words = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        return words[:, 0], words[:, 1]

    def unbiased(self, loss: Loss) -> Loss:
        """The loss of randomized labels whose mean over the choices is the loss of the true ones.

        With l(y) the loss at a label, it is (l(y) - other * sum of l over all classes) divided by
        (keep - other): for two classes ((1 - q) l(y) - q l(1 - y)) / (1 - 2q) (Natarajan et al.
        2013). The labels must be codes.
        """
        is_built_in = loss is LOSSES["binary"] or loss is LOSSES["multiclass"]
        per_instance: PerInstance = self._of_classes(loss)
        if is_built_in:
            per_instance = self._binary if loss.labels == "binary" else self._multiclass
        return _UnbiasedLoss(
            per_instance, output=loss.output, labels=loss.labels, has_fixed_hessian=is_built_in
        )

    def _binary(self, output: Tensor, labels: Tensor) -> Tensor:
        """The log loss is linear in the label: it takes that of a corrected one."""
        logits_B = output.reshape(-1) if output.numel() == len(labels) else output
        corrected_B = (labels.to(output.dtype) - self.other) / (self.keep - self.other)
        return F.binary_cross_entropy_with_logits(logits_B, corrected_B, reduction="none")

    def _multiclass(self, output: Tensor, labels: Tensor) -> Tensor:
        log_BK = output.log_softmax(dim=1)
        own_B = log_BK.gather(1, labels.long()[:, None])[:, 0]
        all_B = log_BK[:, : self.num_classes].sum(dim=1)
        return -(own_B - self.other * all_B) / (self.keep - self.other)

    def _of_classes(self, loss: Loss) -> PerInstance:
        def per_instance(output: Tensor, labels: Tensor) -> Tensor:
            each = [
                loss.per_instance(output, torch.full_like(labels, c))
                for c in range(self.num_classes)
            ]
            own_B = torch.stack(each).gather(0, labels.long()[None])[0]
            return (own_B - self.other * sum(each)) / (self.keep - self.other)

        return per_instance


@dataclass(frozen=True)
class _UnbiasedLoss(Loss):
    """`has_fixed_hessian`: it is the log loss's, whose Hessian does not depend on the label."""

    has_fixed_hessian: bool = False

    def curvature(self, output: Tensor, labels: Tensor, weights_B: Tensor | None = None) -> float:
        """See `Loss`. The squared gradient of a corrected label is larger than a log loss's."""
        if not self.has_fixed_hessian or weights_B is not None:
            return super().curvature(output, labels, weights_B)
        with torch.enable_grad():
            leaf = output.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.per_instance(leaf, labels).sum(), leaf)
        p = output.detach().sigmoid() if self.labels == "binary" else output.detach().softmax(dim=1)
        ratio = float((p * (1 - p)).sum() / slope.square().sum())
        return ratio if math.isfinite(ratio) else 0.0
