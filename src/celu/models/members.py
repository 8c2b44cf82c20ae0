"""Members of a model: predictions of its own for each row, each trained on its own loss.

They share most weights, as in Gorishniy et al., "TabM: Advancing Tabular Deep Learning with
Parameter-Efficient Ensembling" (ICLR 2025). A top with an attribute `members` above 1 returns
[B, members, outputs] in training mode, and otherwise [B, outputs], the mean of its members.
"""

from __future__ import annotations

from functools import wraps

from torch import Tensor, nn

from celu.models.losses import Loss, PerInstance


def num_members(top: nn.Module) -> int:
    """How many members a top has; 1 for a top that declares none."""
    members = getattr(top, "members", 1)
    return members if isinstance(members, int) else 1


class MemberLoss:
    """A loss as the mean of the losses of all members of a top, in training.

    Outputs without an axis of members, those of an evaluation, have the loss as it is.
    """

    def __init__(self, loss: Loss, top: nn.Module) -> None:
        self._loss = loss
        self._members = num_members(top)
        self.per_instance = loss.per_instance if self._members == 1 else self._mean()

    def is_of_members(self, output: Tensor) -> bool:
        """Whether an output has an axis of members."""
        return self._members > 1 and output.dim() > 2 and output.shape[1] == self._members

    def one_member(self, output: Tensor) -> Tensor:
        """The output of the first member, [B, outputs]."""
        return output[:, 0] if self.is_of_members(output) else output

    def combine(self, output: Tensor) -> Tensor:
        """The output of the whole model, [B, outputs]: the mean of its members."""
        return output.mean(dim=1) if self.is_of_members(output) else output

    def _mean(self) -> PerInstance:
        per_instance = self._loss.per_instance

        @wraps(per_instance)  # errors name the loss
        def mean_of_members(output: Tensor, labels: Tensor) -> Tensor:
            if not self.is_of_members(output):
                return per_instance(output, labels)
            losses = per_instance(output.flatten(0, 1), self._repeat(labels))
            # Other shapes than one value per row are for the caller to refuse.
            return losses.unflatten(0, output.shape[:2]).mean(dim=1) if losses.dim() else losses

        return mean_of_members

    def curvature(self, output: Tensor, labels: Tensor, weights_B: Tensor | None = None) -> float:
        """The curvature of the loss of a member: `Loss.curvature` over the members of all rows.

        A host corrects a row of dZ by one factor. With this curvature that is the mean of the
        factors that the members' own parts of dZ ask for, since each part is 1 / members of the
        derivative of the member's loss.
        """
        if self.is_of_members(output):
            weights_B = None if weights_B is None else self._repeat(weights_B)
            output, labels = output.flatten(0, 1), self._repeat(labels)
        return self._loss.curvature(output, labels, weights_B)

    def _repeat(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self._members, dim=0)
