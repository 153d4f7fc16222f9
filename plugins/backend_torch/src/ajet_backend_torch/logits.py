"""Logits at chosen positions only, in chunks: the vocabulary makes the last layer expensive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ajet_backend_torch.losses import TokenScores, score_tokens
from ajet_backend_torch.packing import PassTensors
from ajet_backend_torch.restrictions import Restrictions
from ajet_core.errors import ModelDirectoryError
from ajet_torch.models import vocabulary_size

PROBE_TOKENS = 8
CHUNK_LOGITS = 2**26
"""So many logits exist at once if the output embedding can be applied apart: 256 MiB in float32."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Logits of N positions, and the hidden states that their gradient continues to.

    The graph is cut before the output embedding: `torch.autograd.backward` of a loss of `logits`
    ends in `leaf`, whose gradient is that of `hidden`. So the logits can be freed before the
    backward pass of the layers below.

    :param logits: [N, vocabulary]; [0, vocabulary] if `scores` computes them in chunks.
    :param hidden: [N, hidden] with the graph of the layers below; None if the graph was not cut.
    :param leaf: [N, hidden] `hidden` without its graph; None if the graph was not cut.
    :param head: maps `leaf` to logits; None if `logits` has them all.
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None = None
    leaf: torch.Tensor | None = None
    head: nn.Module | None = None

    def without_logits(self) -> Selection:
        """Return what the backward pass needs once the loss is differentiated down to `leaf`."""
        return Selection(self.logits.new_empty(0), self.hidden, self.leaf)

    def scores(self, tensors: PassTensors, *, entropy_gradient: bool = False) -> TokenScores:
        """Compute logprobs and entropies of the targets of a pass, in chunks if there is `head`.

        The backward pass computes the logits of each chunk again, so that only one chunk's exist
        at a time.
        """
        if self.head is None:
            return score_tokens(
                self.logits,
                tensors.targets,
                tensors.place_temperature,
                tensors.of_place,
                entropy_gradient=entropy_gradient,
                restrictions=tensors.restrictions,
            )
        assert self.leaf is not None
        head = self.head

        def score(
            states: torch.Tensor,
            targets: torch.Tensor,
            temperature: torch.Tensor,
            of_place: torch.Tensor,
            restrictions: Restrictions | None,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            scored = score_tokens(
                head(states[None])[0],
                targets,
                temperature,
                of_place,
                entropy_gradient=entropy_gradient,
                restrictions=restrictions,
            )
            return scored.logprobs, scored.entropy

        of_place = tensors.of_place
        if of_place is None:
            of_place = torch.arange(len(tensors.targets), device=self.leaf.device)
        numbers, logprobs, entropies = [], [], []
        for places in _chunks(len(self.leaf), self.logits.shape[-1]):
            inside = ((of_place >= places.start) & (of_place < places.stop)).nonzero()[:, 0]
            part = (
                self.leaf[places],
                tensors.targets[inside],
                tensors.place_temperature[places],
                of_place[inside] - places.start,
                None if tensors.restrictions is None else tensors.restrictions.of(places),
            )
            results = (
                checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False)
                if torch.is_grad_enabled()
                else score(*part)
            )
            numbers.append(inside)
            logprobs.append(results[0])
            entropies.append(results[1])
        order = torch.cat(numbers).argsort()
        return TokenScores(torch.cat(logprobs)[order], torch.cat(entropies)[order])


def _chunks(places: int, vocabulary: int) -> Iterator[slice]:
    """Divide places so that each part has at most `CHUNK_LOGITS` logits."""
    size = max(1, CHUNK_LOGITS // vocabulary)
    for start in range(0, places, size):
        yield slice(start, min(places, start + size))


class SelectedLogits:
    """Compute a causal LM's logits at chosen positions, with the model's own scaling.

    A hook narrows the input of the output embedding to the chosen positions, so that the model's
    own code computes the rest. If this gives other results for a model, all its logits are
    computed. If the output embedding alone gives the logits, without a scaling or cap behind it,
    many logits are computed in chunks.

    :param module: a Hugging Face causal LM.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._head = cast("nn.Module | None", module.get_output_embeddings())  # type: ignore[operator]
        self._narrow = False
        self._divide = False
        self._probe()

    @property
    def narrows(self) -> bool:
        """Whether only the chosen logits are computed."""
        return self._narrow

    @property
    def divides(self) -> bool:
        """Whether many logits are computed in chunks."""
        return self._divide

    def __call__(self, inputs: Mapping[str, object], places: torch.Tensor) -> Selection:
        """Return logits at flat positions.

        :param inputs: arguments of the module, with ``input_ids`` [R, T] int64 padded on the right.
        :param places: [N] int64 indices into [R * T].
        """
        if not self._narrow:
            return Selection(self._all(inputs)[places])
        many = len(places) * vocabulary_size(self.module) > CHUNK_LOGITS
        return self._selected(inputs, places, divide=self._divide and many)

    def _all(self, inputs: Mapping[str, object]) -> torch.Tensor:
        logits = cast("torch.Tensor", self.module(**inputs, use_cache=False).logits)
        return logits.reshape(-1, logits.shape[-1])

    def _selected(
        self, inputs: Mapping[str, object], places: torch.Tensor, *, divide: bool = False
    ) -> Selection:
        assert self._head is not None
        cut: list[torch.Tensor] = []

        def narrow(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            states = arguments[0]
            hidden = states.reshape(-1, states.shape[-1])[places]
            leaf = hidden.detach().requires_grad_(hidden.requires_grad)
            cut.extend((hidden, leaf))
            return (leaf[None, :0] if divide else leaf[None], *arguments[1:])

        handle = self._head.register_forward_pre_hook(narrow)
        try:
            logits = cast("torch.Tensor", self.module(**inputs, use_cache=False).logits)
        finally:
            handle.remove()
        hidden, leaf = cut
        return Selection(logits[0], hidden, leaf, self._head if divide else None)

    @torch.no_grad()
    def _probe(self) -> None:
        """Find out whether chosen logits, and those of the output embedding alone, are right."""
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
        if self._head is None:
            return
        tolerance = 1e-4 if everything.dtype == torch.float32 else 5e-2

        def right(logits: torch.Tensor) -> bool:
            return logits.shape == everything[places].shape and torch.allclose(
                logits, everything[places], rtol=tolerance, atol=tolerance
            )

        try:
            self._narrow = right(self._selected({"input_ids": ids}, places).logits)
            if self._narrow:
                divided = self._selected({"input_ids": ids}, places, divide=True)
                assert divided.leaf is not None
                self._divide = right(self._head(divided.leaf[None])[0])
        except (RuntimeError, TypeError, ValueError, IndexError):
            return
