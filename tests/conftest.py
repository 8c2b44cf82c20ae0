"""Tests use one thread: their tensors are small, and many of them share two cores.

And no example of a property has to be quick: on a busy machine none may be.
"""

import os

import torch
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)
settings.register_profile("celu", deadline=None)
settings.load_profile("celu")
