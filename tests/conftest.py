"""Settings for all tests: one thread, and no time limit for the examples of a property.

One thread, because tensors are small and several tests share a few cores. No limit, because no test
may depend on how busy the machine is.
"""

import os

import torch
from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)
settings.register_profile("celu", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("celu")
