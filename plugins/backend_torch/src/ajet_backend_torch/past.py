"""Keys and values of earlier passes as the past of a pass, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from transformers.cache_utils import Cache

from ajet_training.schedule import Pass

FOLDED_SHARE = 4
"""Rows are folded up to this part of the length of their past,"""
MOST_FOLDED = 1024
"""and this many tokens, so that their mask stays small."""
MASK_ALIGNMENT = 16
"""CUDA's memory-efficient attention copies a mask whose rows do not start at multiples of this."""


@dataclass(slots=True)
class StoredPass:
    """Keys and values of a pass of R rows of L tokens, for the passes below it, by layer.

    They are detached from the pass's graph. Their gradients are summed here and passed to its
    backward pass.

    :ivar keys: [R, heads, L, head_dim] each; the values likewise.
    :ivar key_grads: float32, of the same shapes; None until there is a gradient.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    key_grads: list[torch.Tensor | None] = field(init=False)
    value_grads: list[torch.Tensor | None] = field(init=False)

    def __post_init__(self) -> None:
        self.key_grads = [None] * len(self.keys)
        self.value_grads = [None] * len(self.values)


@dataclass(frozen=True, slots=True)
class PastBlock:
    """A `ajet_training.schedule.Block` with the stored pass that it refers to.

    :param rows: int64 [R], or one row that all R rows share.
    """

    stored: StoredPass
    rows: int | torch.Tensor
    width: int


class PassCache(Cache):  # type: ignore[misc]
    """Give a pass its past, and keep its new keys and values with their graph.

    :param blocks: the past, oldest first; empty for a root.
    """

    def __init__(self, blocks: Sequence[PastBlock] = ()) -> None:
        super().__init__(layers=[])
        self.blocks = blocks
        self.past = sum(block.width for block in blocks)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: object,
        **_kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [R, heads, L, head_dim] to the past, and return [R, heads, past + L, head_dim]."""
        # Gradient checkpointing recomputes a layer in the backward pass; only the first result has
        # the graph.
        if layer_idx == len(self.keys):
            self.keys.append(key_states)
            self.values.append(value_states)
        if not self.blocks:
            return key_states, value_states
        return (
            self._gathered(key_states, layer_idx, values=False),
            self._gathered(value_states, layer_idx, values=True),
        )

    def _gathered(self, new: torch.Tensor, layer: int, *, values: bool) -> torch.Tensor:
        return cast(
            "torch.Tensor",
            _Gather.apply(new, self.blocks, layer, values),  # type: ignore[no-untyped-call]
        )

    def store(self) -> StoredPass:
        """Return the new keys and values, detached from the graph."""
        return StoredPass([k.detach() for k in self.keys], [v.detach() for v in self.values])

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return 0: the model gets explicit positions and masks."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        """Return size and offset of the keys, for the causal mask that a model makes for a root."""
        return self.past + query_length, 0

    @property
    def is_compileable(self) -> bool:
        """False: the cache's shapes change, so it cannot be compiled."""
        return False


class _Gather(torch.autograd.Function):
    """Concatenate the past of R rows and their L new keys (or values) in one tensor.

    The past has no graph. Its gradient is added to `StoredPass`, in one operation for each block
    instead of one graph node for each.
    """

    @staticmethod
    def forward(
        ctx: Any,
        new: torch.Tensor,
        blocks: Sequence[PastBlock],
        layer: int,
        values: bool,
    ) -> torch.Tensor:
        # Do not store the cache: it refers to this graph, which would never be freed.
        ctx.blocks, ctx.layer, ctx.values = blocks, layer, values
        rows, heads, width, size = new.shape
        # Tokens are contiguous in memory, so that every block is copied in one piece.
        past = sum(block.width for block in blocks)
        whole = new.new_empty(rows, past + width, heads, size).transpose(1, 2)
        end = 0
        for block in blocks:
            stored = block.stored
            source = (stored.values if values else stored.keys)[layer][:, :, : block.width]
            target = whole[:, :, end : end + block.width]
            if isinstance(block.rows, int):
                target.copy_(source[block.rows])
            else:
                target.copy_(source.index_select(0, block.rows))
            end += block.width
        whole[:, :, end:].copy_(new)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (whole,) = grads
        blocks: Sequence[PastBlock] = ctx.blocks
        past = sum(block.width for block in blocks)
        # One sum for all blocks that the rows share.
        shared = (
            whole[:, :, :past].sum(0, dtype=torch.float32)
            if any(isinstance(block.rows, int) for block in blocks)
            else None
        )
        end = 0
        for block in blocks:
            stored = block.stored
            grads_by_layer = stored.value_grads if ctx.values else stored.key_grads
            grad = grads_by_layer[ctx.layer]
            if grad is None:
                like = (stored.values if ctx.values else stored.keys)[ctx.layer]
                grad = grads_by_layer[ctx.layer] = torch.zeros_like(like, dtype=torch.float32)
            start, end = end, end + block.width
            if isinstance(block.rows, int):
                assert shared is not None
                grad[block.rows, :, : block.width] += shared[:, start:end]
            else:
                grad[:, :, : block.width].index_add_(0, block.rows, whole[:, :, start:end].float())
        return whole[:, :, end:], None, None, None


def past_mask(
    passes: Sequence[Pass], part: Pass, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the additive mask [R or 1, 1, L, past + L] of a pass with a past.

    It hides later tokens, and the padding of shorter rows of the past. Without such padding, all
    rows share one mask. The padding of the new tokens needs no mask, because no real token comes
    after it.
    """
    shape = part.shape
    size = shape.past + shape.width
    columns = torch.arange(size, device=device)
    hidden = columns > columns[shape.past :, None]
    lengths = [
        [passes[block.source].rows[row].length for row in block.rows] for block in part.blocks
    ]
    if any(
        min(row_lengths) < block.width
        for row_lengths, block in zip(lengths, part.blocks, strict=True)
    ):
        padding = torch.ones(shape.rows, size, dtype=torch.bool)
        padding[:, shape.past :] = False
        end = 0
        for row_lengths, block in zip(lengths, part.blocks, strict=True):
            real = torch.tensor(row_lengths)[:, None]
            padding[:, end : end + block.width] = torch.arange(block.width) >= real
            end += block.width
        padded = to_device(padding, device)
        hidden = hidden | padded[:, None]
    else:
        hidden = hidden[None]
    aligned = -(-size // MASK_ALIGNMENT) * MASK_ALIGNMENT
    mask = torch.zeros(len(hidden), 1, shape.width, aligned, dtype=dtype, device=device)[..., :size]
    return mask.masked_fill_(hidden[:, None], torch.finfo(dtype).min)


def folding(part: Pass) -> int:
    """Return how many rows of a pass are computed as one.

    Rows that continue from the same tokens need only one copy of their keys and values, if they
    follow each other in one row with a mask that hides them from each other. The attention of a
    token then has to skip the others, so they must be few compared with the past. Passes that
    others continue from keep their rows.
    """
    shape = part.shape
    if part.inner or not part.blocks or any(len(block.rows) > 1 for block in part.blocks):
        return 1
    most = max(1, min(shape.past // FOLDED_SHARE, MOST_FOLDED) // shape.width)
    groups = -(-shape.rows // most)
    return -(-shape.rows // groups)


def folded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return [R, L] as [ceil(R / count), count * L], padded with zeros."""
    groups = -(-len(rows) // count)
    missing = groups * count - len(rows)
    if missing:
        rows = torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
    return rows.reshape(groups, -1)


def folded_mask(part: Pass, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the additive mask [1, 1, count * L, past + count * L] of rows that are folded."""
    width, past = part.shape.width, part.shape.past
    new = torch.arange(count * width, device=device)
    hidden = (new > new[:, None]) | (new // width != new[:, None] // width)
    size = past + count * width
    aligned = -(-size // MASK_ALIGNMENT) * MASK_ALIGNMENT
    mask = torch.zeros(1, 1, count * width, aligned, dtype=dtype, device=device)[..., :size]
    mask[0, 0, :, past:].masked_fill_(hidden, torch.finfo(dtype).min)
    return mask


def past_blocks(
    part: Pass, stored: Sequence[StoredPass | None], device: torch.device
) -> list[PastBlock]:
    """Return the past of a pass.

    :param stored: stored passes, by index of the pass.
    """
    blocks = []
    for block in part.blocks:
        source = stored[block.source]
        if source is None:
            raise RuntimeError(f"pass {block.source} was forgotten before the passes below it ran")
        rows = (
            block.rows[0] if len(block.rows) == 1 else to_device(torch.tensor(block.rows), device)
        )
        blocks.append(PastBlock(source, rows, block.width))
    return blocks


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy to the device without waiting for the copy."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
