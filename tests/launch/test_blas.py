"""The threads of NumPy's linear algebra."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import numpy as np
from threadpoolctl import threadpool_info  # with scikit-learn
from celu.launch.blas import limit_blas_threads

for number in (2, 1):
    assert limit_blas_threads(number)
    pools = [pool for pool in threadpool_info() if "numpy" in pool["filepath"]]
    print(*[pool["num_threads"] for pool in pools])
"""


def test_numpy_uses_as_many_threads_as_it_is_told() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.split() == ["2", "1"], done.stderr
