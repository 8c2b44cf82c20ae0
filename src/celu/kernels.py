"""Finds modules of Triton kernels, where there is Triton: it comes with torch's CUDA builds."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def find_kernels(module: str) -> ModuleType | None:
    """The module with this name; None where Triton is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "triton":
            return None
        raise
