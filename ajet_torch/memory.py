"""Running out of memory: how it shows, and what can be done about it."""

from __future__ import annotations

import gc

import torch

ALWAYS_COPIED = 2**28
"""Weights in this number are copied before a single optimiser step as well: 3 GiB with the optimiser's state."""
LEAST_BUDGET = 16
"""Below so many tokens a pass takes hardly less memory."""

MESSAGES = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",
)
"""What PyTorch, CUDA's libraries and the operating system say, where there is no error class for it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was missing, of the device or of the host."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(part in text for part in MESSAGES)


def free_memory(device: torch.device) -> None:
    """Give back what nothing refers to any more. Call it outside of ``except``, whose traceback refers to much."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def headline(error: BaseException) -> str:
    """Class and first line of an error: what follows is often a page of advice on the allocator."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"
