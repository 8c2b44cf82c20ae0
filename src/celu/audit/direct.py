"""Attacks that compute one number from a row's dZ: its norm, a cosine, a spectral projection.

Norm and cosine: Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022).
Spectral: Sun et al., "Label Leakage and Protection from Forward Embedding" (2022). We let each
attacker know some labels, which give its scores their sign.
"""

from __future__ import annotations

import numpy as np

from celu.audit.leak import Bools, Floats, auc_of


def norm(x_ND: Floats, is_positive_N: Bools, is_known_N: Bools) -> Floats:
    """The norm of dZ: a rare class has larger errors."""
    return _oriented(np.linalg.norm(x_ND, axis=1), is_positive_N, is_known_N)


def cosine(x_ND: Floats, is_positive_N: Bools, is_known_N: Bools) -> Floats:
    """How much dZ points where known positives point and known negatives do not."""
    unit_ND = x_ND / np.maximum(np.linalg.norm(x_ND, axis=1, keepdims=True), 1e-30)
    positive_D = unit_ND[is_known_N & is_positive_N].mean(axis=0)
    negative_D = unit_ND[is_known_N & ~is_positive_N].mean(axis=0)
    return _oriented(unit_ND @ (positive_D - negative_D), is_positive_N, is_known_N)


def spectral(x_ND: Floats, is_positive_N: Bools, is_known_N: Bools) -> Floats:
    """The projection on the direction in which dZ varies most."""
    centred_ND = (x_ND - x_ND.mean(axis=0)).astype(np.float64)
    scale = np.abs(centred_ND).max() or 1.0  # dZ is small: its square may underflow
    centred_ND = centred_ND / scale
    _, vectors = np.linalg.eigh(centred_ND.T @ centred_ND)
    return _oriented(centred_ND @ vectors[:, -1], is_positive_N, is_known_N)


def _oriented(scores_N: Floats, is_positive_N: Bools, is_known_N: Bools) -> Floats:
    """The scores, with the sign that fits the known labels."""
    known = auc_of(scores_N[is_known_N], is_positive_N[is_known_N])
    return -scores_N if known < 0.5 else scores_N
