"""Compute the passes of a schedule depth first, forward and backward."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ajet_backend_torch.logits import SelectedLogits, Selection
from ajet_backend_torch.losses import TokenScores
from ajet_backend_torch.packing import PassTensors
from ajet_backend_torch.past import (
    PassCache,
    StoredPass,
    folded,
    folded_mask,
    folding,
    past_blocks,
    past_mask,
)
from ajet_training.schedule import Pass

LossOf = Callable[[int, PassTensors, TokenScores], torch.Tensor]
"""Computes the scalar loss of a pass from its index, tensors and scores."""


@dataclass(slots=True)
class _Frame:
    """A pass between its forward and its backward pass.

    :param tensors: [N tokens] see `PassTensors`.
    :param seed: seed of its dropout.
    :param selection: None if there is no graph.
    :param loss: the loss, if it still has to be differentiated; None if the graph was cut at the
        logits and the part above the cut is done.
    """

    index: int
    tensors: PassTensors
    cache: PassCache | None
    stored: StoredPass | None
    seed: int | None
    selection: Selection | None = None
    loss: torch.Tensor | None = None


class Forest:
    """A causal LM that continues exactly from the keys and values of its earlier passes.

    :param dtype: dtype of the model, for masks.
    :ivar noise: source of a dropout seed for each pass, so that a recomputed pass has the same
        dropout; None without dropout.
    """

    def __init__(self, logits: SelectedLogits, dtype: torch.dtype, device: torch.device) -> None:
        self._logits = logits
        self._dtype = dtype
        self._device = device
        self.noise: random.Random | None = None

    def train(
        self,
        passes: Sequence[Pass],
        subtree: range,
        tensors: Mapping[int, PassTensors],
        loss_of: LossOf,
        *,
        entropy_gradient: bool = False,
        begin: Callable[[int], None] = lambda _: None,
        done: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Add the gradients of a subtree's loss to the parameters.

        :param subtree: indices of a root and of all passes below it.
        :param tensors: tensors of each pass, by index.
        :param loss_of: called once for every pass that trains a token.
        :param begin: called with the index of each pass before its first forward pass.
        :param done: called with the index of each pass after its backward pass.
        """
        stored: list[StoredPass | None] = [None] * subtree.stop
        stack: list[_Frame] = []

        def differentiate(frame: _Frame) -> None:
            """Compute the loss, and its gradient down to where the graph is cut."""
            selection = frame.selection
            assert selection is not None
            if not len(frame.tensors.targets):
                return
            scores = selection.scores(frame.tensors, entropy_gradient=entropy_gradient)
            loss = loss_of(frame.index, frame.tensors, scores)
            if selection.leaf is None:
                frame.loss = loss
            elif loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]

        def finish(frame: _Frame) -> None:
            if frame.selection is None:
                part = passes[frame.index]
                frame.selection, frame.cache = self._forward(
                    passes, part, frame.tensors, stored, frame.seed
                )
                differentiate(frame)
            _backward(frame)
            stored[frame.index] = None
            done(frame.index)

        for index in subtree:
            part = passes[index]
            while stack and stack[-1].index != part.parent:
                finish(stack.pop())
            begin(index)
            seed = None if self.noise is None else self.noise.getrandbits(62)
            frame = _Frame(index, tensors[index], None, None, seed)
            with torch.set_grad_enabled(part.keeps):
                selection, frame.cache = self._forward(
                    passes, part, frame.tensors, stored, seed, logits=part.keeps
                )
            if frame.cache is not None and part.inner:
                stored[index] = frame.stored = frame.cache.store()
            if part.keeps:
                frame.selection = selection
                differentiate(frame)
                # The logits are not needed any longer.
                if selection.hidden is not None:
                    frame.selection = selection.without_logits()
            else:
                frame.cache = None
            del selection
            stack.append(frame)
        while stack:
            finish(stack.pop())

    @torch.no_grad()
    def scores(
        self, passes: Sequence[Pass], subtree: range, tensors: Mapping[int, PassTensors]
    ) -> dict[int, torch.Tensor]:
        """Return [N] logprobs of each pass of a subtree, without gradient."""
        logprobs: dict[int, torch.Tensor] = {}
        stored: list[StoredPass | None] = [None] * subtree.stop
        path: list[int] = []
        for index in subtree:
            part = passes[index]
            while path and path[-1] != part.parent:
                stored[path.pop()] = None
            selection, cache = self._forward(passes, part, tensors[index], stored, None)
            logprobs[index] = selection.scores(tensors[index]).logprobs
            if cache is not None:
                stored[index] = cache.store()
            path.append(index)
        return logprobs

    def _forward(
        self,
        passes: Sequence[Pass],
        part: Pass,
        tensors: PassTensors,
        stored: Sequence[StoredPass | None],
        seed: int | None,
        *,
        logits: bool = True,
    ) -> tuple[Selection, PassCache | None]:
        if seed is not None:
            torch.manual_seed(seed)
        places = tensors.places if logits else tensors.places[:0]
        if not part.inner and not part.blocks:
            return self._logits({"input_ids": tensors.ids}, places), None
        cache = PassCache(past_blocks(part, stored, self._device))
        ids, positions, mask = tensors.ids, tensors.positions, None
        # Without a past, the model's own causal attention is exact and faster than any mask.
        if (count := folding(part)) > 1:
            ids, positions = folded(ids, count), folded(positions, count)
            mask = folded_mask(part, count, self._dtype, self._device)
        elif part.blocks:
            mask = past_mask(passes, part, self._dtype, self._device)
        inputs = {
            "input_ids": ids,
            "position_ids": positions,
            "past_key_values": cache,
            "attention_mask": mask,
        }
        return self._logits(inputs, places), cache


def _backward(frame: _Frame) -> None:
    """Propagate gradients from the loss, and from the keys and values that later passes used."""
    roots: list[torch.Tensor] = []
    grads: list[torch.Tensor | None] = []

    def add(root: torch.Tensor | None, grad: torch.Tensor | None) -> None:
        if root is not None and root.requires_grad:
            roots.append(root)
            grads.append(grad)

    selection = frame.selection
    assert selection is not None
    if frame.loss is not None:
        add(frame.loss, None)
    if selection.leaf is not None and selection.leaf.grad is not None:
        add(selection.hidden, selection.leaf.grad)
    if frame.stored is not None and frame.cache is not None:
        for tensors, stored_grads in (
            (frame.cache.keys, frame.stored.key_grads),
            (frame.cache.values, frame.stored.value_grads),
        ):
            for tensor, grad in zip(tensors, stored_grads, strict=True):
                if grad is not None:
                    add(tensor, grad.to(tensor.dtype))
    if roots:
        torch.autograd.backward(roots, grads)
