"""What torchrun tells a process about its rank. Does not import torch."""

from __future__ import annotations

import os


def num_ranks() -> int:
    """How many ranks torchrun started of this party; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def own_rank() -> int:
    """The number of this rank; 0 without torchrun."""
    return int(os.environ["RANK"]) if num_ranks() > 1 else 0


def num_restarts() -> int:
    """How often torchrun has restarted the ranks of this party."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def local_rank() -> int:
    """The number of this rank among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def num_local_ranks() -> int:
    """How many ranks share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if num_ranks() > 1 else 1
