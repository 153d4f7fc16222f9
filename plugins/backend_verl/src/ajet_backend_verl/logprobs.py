"""Logprobs of labels where FlashAttention is not installed.

verl then computes one token after another, in several kernels each. On a GPU, that took most of the
time of a step: 7 of 10 seconds for 40,000 tokens of a model of 0.5 billion weights (H200).

Import this module after `ajet_backend_verl.surroundings.prepare`.
"""

from __future__ import annotations

import torch
from verl.utils import torch_functional

CHUNK_LOGITS = 2**26
"""So many logits are computed at once, which bounds the memory of intermediate results."""
_EXACT = (torch.float32, torch.float64)


def use_chunks() -> None:
    """Make verl compute chunks of tokens in this process; FlashAttention still comes first."""
    torch_functional.logprobs_from_logits_v2 = logprobs_in_chunks


def logprobs_in_chunks(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return logprobs with the shape of `labels`, as verl's `logprobs_from_logits_v2` does.

    :param logits: [..., vocabulary]; logprobs have their dtype.
    """
    size = max(1, CHUNK_LOGITS // logits.shape[-1])
    rows = torch.split(logits.flatten(0, -2), size)
    parts = zip(rows, torch.split(labels.flatten(), size), strict=True)
    return torch.cat([_logprobs(*part) for part in parts]).view(labels.shape)


def _logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    chosen = labels.unsqueeze(-1)
    if logits.dtype in _EXACT:
        return logits.gather(-1, chosen).squeeze(-1) - logits.logsumexp(-1)
    # In half precision the difference of rounded numbers would be inexact.
    return logits.log_softmax(-1).gather(-1, chosen).squeeze(-1)
