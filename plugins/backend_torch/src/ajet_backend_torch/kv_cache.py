"""The slot KV cache: one slot of keys and values for every running or remembered sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache

FIRST_ALLOCATION = 256


@dataclass(frozen=True, slots=True)
class CacheView:
    """The part of the cache that one forward pass of n rows and q columns writes and reads.

    :param rows: the slots to read, as a range or as int64 [n].
    :param write: [n * q] int64, flat indices ``slot * stride + position`` of the new tokens.
    :param visible: every row reads the positions ``0 .. visible - 1``; the attention mask hides
        those that are not its own past.
    """

    rows: slice | torch.Tensor
    write: torch.Tensor
    visible: int


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values [slots, positions + 1, heads, head_dim] for each layer of any causal LM.

    Works with every model that passes its new keys and values to ``past_key_values.update``.
    Numbers of layers and heads, head sizes and dtypes are taken from the first pass. Positions are
    allocated in powers of two as they are needed. The last position is never read: padding is
    written there.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.capacity = capacity
        self.allocated = 0
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._view: CacheView | None = None

    @property
    def stride(self) -> int:
        """Number of indices of one slot in the flat numbering of `CacheView.write`."""
        return self.allocated + 1

    @property
    def padding(self) -> int:
        """The position that receives values to be discarded."""
        return self.allocated

    @property
    def nbytes(self) -> int:
        """Number of allocated bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def reserve(self, positions: int) -> None:
        """Extend every slot to `positions` positions, and keep the stored values."""
        if positions <= self.allocated:
            return
        size = max(self.allocated, FIRST_ALLOCATION)
        while size < positions:
            size *= 2
        size = min(size, self.capacity)
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                new = old.new_zeros(self.slots, size + 1, *old.shape[2:])
                new[:, : self.allocated] = old[:, : self.allocated]
                store[layer] = new
        self.allocated = size

    def bind(self, view: CacheView) -> None:
        """Set what the next forward pass writes and reads."""
        self._view = view

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :length] = tensor[source, :length]

    def clear(self, slot: int | None = None) -> None:
        """Zero one slot or all: a mask does not hide a NaN, because 0 * NaN is NaN."""
        for tensor in (*self.keys, *self.values):
            (tensor if slot is None else tensor[slot]).zero_()

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: object,
        **_kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values [n, heads, q, head_dim], and return those of the whole view.

        :return: keys and values [n, heads, visible, head_dim].
        """
        view = self._view
        if view is None:
            raise RuntimeError("SlotCache.update was called before SlotCache.bind")
        if layer_idx == len(self.keys):
            for store, new in ((self.keys, key_states), (self.values, value_states)):
                store.append(new.new_zeros(self.slots, self.stride, new.shape[1], new.shape[3]))
        return (
            _write_and_read(self.keys[layer_idx], key_states, view),
            _write_and_read(self.values[layer_idx], value_states, view),
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return 0: the model gets explicit positions."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        """Return size and offset of the keys; only models that build their own mask call this."""
        return (self._view.visible if self._view is not None else 0), 0

    @property
    def is_compileable(self) -> bool:
        """False: the cache's shapes change, so it cannot be compiled."""
        return False


def _write_and_read(store: torch.Tensor, new: torch.Tensor, view: CacheView) -> torch.Tensor:
    flat = store.view(store.shape[0] * store.shape[1], -1)
    flat.index_copy_(0, view.write, new.transpose(1, 2).reshape(-1, flat.shape[1]))
    if isinstance(view.rows, slice):
        visible = store[view.rows, : view.visible]
    else:
        visible = store[:, : view.visible].index_select(0, view.rows)
    return visible.transpose(1, 2)
