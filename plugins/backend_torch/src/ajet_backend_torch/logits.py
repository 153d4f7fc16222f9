"""Logits at chosen positions only: the vocabulary makes the last layer expensive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from ajet_core.errors import ModelDirectoryError
from ajet_torch.models import vocabulary_size

PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """Logits of N positions, and the hidden states that their gradient continues to.

    The graph is cut before the output embedding: `torch.autograd.backward` of a loss of `logits`
    ends in `leaf`, whose gradient is that of `hidden`. So the logits can be freed before the
    backward pass of the layers below.

    :param logits: [N, vocabulary].
    :param hidden: [N, hidden] with the graph of the layers below; None if the graph was not cut.
    :param leaf: [N, hidden] `hidden` without its graph; None if the graph was not cut.
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None = None
    leaf: torch.Tensor | None = None


class SelectedLogits:
    """Compute a causal LM's logits at chosen positions, with the model's own scaling.

    A hook narrows the input of the output embedding to the chosen positions, so that the model's
    own code computes the rest. If this gives other results for a model, all its logits are
    computed.

    :param module: a Hugging Face causal LM.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._head = cast("nn.Module | None", module.get_output_embeddings())  # type: ignore[operator]
        self._narrow = self._head is not None and self._is_exact()

    @property
    def narrows(self) -> bool:
        """Whether only the chosen logits are computed."""
        return self._narrow

    def __call__(self, inputs: Mapping[str, object], places: torch.Tensor) -> Selection:
        """Return logits at flat positions.

        :param inputs: arguments of the module, with ``input_ids`` [R, T] int64 padded on the right.
        :param places: [N] int64 indices into [R * T].
        """
        if not self._narrow:
            return Selection(self._all(inputs)[places])
        return self._selected(inputs, places)

    def _all(self, inputs: Mapping[str, object]) -> torch.Tensor:
        logits = cast("torch.Tensor", self.module(**inputs, use_cache=False).logits)
        return logits.reshape(-1, logits.shape[-1])

    def _selected(self, inputs: Mapping[str, object], places: torch.Tensor) -> Selection:
        assert self._head is not None
        cut: list[torch.Tensor] = []

        def narrow(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            states = arguments[0]
            hidden = states.reshape(-1, states.shape[-1])[places]
            leaf = hidden.detach().requires_grad_(hidden.requires_grad)
            cut.extend((hidden, leaf))
            return (leaf[None], *arguments[1:])

        handle = self._head.register_forward_pre_hook(narrow)
        try:
            logits = cast("torch.Tensor", self.module(**inputs, use_cache=False).logits)
        finally:
            handle.remove()
        return Selection(logits[0], *cut)

    @torch.no_grad()
    def _is_exact(self) -> bool:
        assert self._head is not None
        device = next(self.module.parameters()).device
        ids = (torch.arange(2 * PROBE_TOKENS, device=device) % vocabulary_size(self.module)).view(
            2, -1
        )
        places = torch.tensor([1, PROBE_TOKENS - 1, PROBE_TOKENS + 3], device=device)
        try:
            everything = self._all({"input_ids": ids})
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelDirectoryError(
                f"{type(self.module).__name__} cannot compute logits from token ids alone: {error}",
                param="model.path",
            ) from error
        try:
            selected = self._selected({"input_ids": ids}, places).logits
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        tolerance = 1e-4 if everything.dtype == torch.float32 else 5e-2
        return selected.shape == everything[places].shape and torch.allclose(
            selected, everything[places], rtol=tolerance, atol=tolerance
        )
