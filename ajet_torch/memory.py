"""Detection and handling of out-of-memory errors."""

from __future__ import annotations

import gc

import torch

__all__ = [
    "ALWAYS_COPIED",
    "LEAST_BUDGET",
    "MESSAGES",
    "free_memory",
    "headline",
    "is_out_of_memory",
]

ALWAYS_COPIED = 2**28
"""Up to this many, weights are copied even before a single optimiser step: 3 GiB with the
optimiser's state."""
LEAST_BUDGET = 16
"""Smaller passes hardly save memory."""

MESSAGES = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",
)
"""Messages of PyTorch, CUDA's libraries and the operating system that have no error class."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory of the device or host ran out."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(part in text for part in MESSAGES)


def free_memory(device: torch.device) -> None:
    """Free unreferenced memory. Call it outside of ``except``: a traceback keeps references."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def headline(error: BaseException) -> str:
    """Return class and first line of an error; the rest is often advice on the allocator."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"
