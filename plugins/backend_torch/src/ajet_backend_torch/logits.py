"""Logits at chosen positions only: the vocabulary is what makes the last layer expensive."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from ajet_backend_torch.models import vocabulary_size
from ajet_core.errors import ModelDirectoryError

PROBE_TOKENS = 8


class SelectedLogits:
    """Computes a causal LM's logits at chosen positions, with whatever scaling the model gives them.

    The input of the output embedding is narrowed to the chosen positions by a hook, so that the model's
    own code does the rest. Models for which that is not the same are given all logits.

    :param module: a Hugging Face causal LM.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._head = cast("nn.Module | None", module.get_output_embeddings())  # type: ignore[operator]
        self._narrow = self._head is not None and self._is_exact()

    @property
    def narrows(self) -> bool:
        """Whether only the chosen logits are computed."""
        return self._narrow

    def __call__(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Logits [N, vocabulary] at flat positions.

        :param ids: [R, T] int64, padded on the right.
        :param places: [N] int64 indices into [R * T].
        """
        if not self._narrow:
            return self._all(ids)[places]
        return self._selected(ids, places)

    def _all(self, ids: torch.Tensor) -> torch.Tensor:
        logits = cast("torch.Tensor", self._module(input_ids=ids, use_cache=False).logits)
        return logits.reshape(-1, logits.shape[-1])

    def _selected(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        assert self._head is not None

        def narrow(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            hidden = inputs[0]
            return (hidden.reshape(-1, hidden.shape[-1])[places][None], *inputs[1:])

        handle = self._head.register_forward_pre_hook(narrow)
        try:
            logits = cast("torch.Tensor", self._module(input_ids=ids, use_cache=False).logits)
        finally:
            handle.remove()
        return logits[0]

    @torch.no_grad()
    def _is_exact(self) -> bool:
        assert self._head is not None
        device = next(self._module.parameters()).device
        ids = (torch.arange(2 * PROBE_TOKENS, device=device) % vocabulary_size(self._module)).view(
            2, -1
        )
        places = torch.tensor([1, PROBE_TOKENS - 1, PROBE_TOKENS + 3], device=device)
        try:
            everything = self._all(ids)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelDirectoryError(
                f"{type(self._module).__name__} cannot compute logits from token ids alone: {error}",
                param="model.path",
            ) from error
        try:
            selected = self._selected(ids, places)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        tolerance = 1e-4 if everything.dtype == torch.float32 else 5e-2
        return selected.shape == everything[places].shape and torch.allclose(
            selected, everything[places], rtol=tolerance, atol=tolerance
        )
