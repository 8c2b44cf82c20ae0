"""The metrics by name: which outputs they fit, and whether higher is better.

Imports no NumPy, so that settings can be checked at once.
"""

from __future__ import annotations

from typing import Literal

Output = Literal["binary", "multiclass", "regression"]
LOSS = "loss"  # the mean loss of the held-out rows, which every evaluation of a run reports

# The metrics of each output, the main one first, and whether higher is better.
METRICS: dict[Output, dict[str, bool]] = {
    "binary": {
        "auc": True,
        "pr_auc": True,
        "log_loss": False,
        "ks": True,
        "accuracy": True,
        "brier": False,
    },
    "multiclass": {"accuracy": True, "log_loss": False, "macro_auc": True, "macro_f1": True},
    "regression": {"rmse": False, "mae": False, "r2": True},
}
# Those that fit an output whose scale is unknown: they use its order, or its largest column.
UNSCALED: dict[Output, tuple[str, ...]] = {
    "binary": ("auc", "pr_auc", "ks"),
    "multiclass": ("accuracy", "macro_f1"),
    "regression": tuple(METRICS["regression"]),
}
HIGHER_IS_BETTER: dict[str, bool] = {LOSS: False} | {
    name: is_higher for names in METRICS.values() for name, is_higher in names.items()
}
# Undefined for some labels, such as those of one class, however good the model is.
UNDEFINED_FOR_SOME_LABELS = frozenset({"auc", "pr_auc", "ks", "macro_auc", "r2"})
# Their names for readers.
TITLES = {
    "auc": "AUC",
    "pr_auc": "PR-AUC",
    "log_loss": "log loss",
    "ks": "KS",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "macro_auc": "macro AUC",
    "macro_f1": "macro F1",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    LOSS: "loss",
}


def title_of(name: str) -> str:
    """A metric's name for readers; a user's own metric has no other."""
    return TITLES.get(name, name)
