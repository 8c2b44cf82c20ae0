"""Tests use one thread: their tensors are small, and many of them share two cores."""

import os

import torch

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)
