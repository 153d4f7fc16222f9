"""An SGLang server as a receiver of weight broadcasts, through SGLang's own routes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from ajet_engines.collective import Backend, Group, GroupMember, TensorSpec

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]

# Upper limit of what SGLang holds in memory at a time besides the model.
_BUCKET_BYTES = 1 << 30
_MOST_ITEM_BYTES = 8


class SglangMember(GroupMember):
    """A server whose scheduler processes receive the weights.

    :param ask: posts JSON to a route of the server.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._name = ""
        self._ranks = 0
        self._backends: list[Backend] = []

    def describe(self, ranks: int, *, gpu: bool) -> None:
        """Set the server's properties; call this before any other method.

        :param ranks: number of tensor parallel ranks.
        """
        self._ranks = ranks
        self._backends = ["nccl", "gloo"] if gpu else ["gloo"]

    def ranks(self) -> int:
        """Return the number of tensor parallel ranks."""
        return self._ranks

    def backends(self) -> list[Backend]:
        """Return the backends that the server's device supports."""
        return self._backends

    async def join(self, group: Group) -> None:
        """Make all processes join the group."""
        body = {
            "master_address": group.host,
            "master_port": group.port,
            "rank_offset": 1,
            "world_size": group.world_size,
            "group_name": group.name,
            "backend": group.backend,
        }
        await self._ask("/init_weights_update_group", body)
        self._name = group.name

    async def take(self, tensors: Sequence[TensorSpec]) -> None:
        """Make all processes receive the tensors, one bucket after the other."""
        await self._ask("/begin_weight_update", {})
        for part in _buckets(tensors):
            body = {
                "names": [tensor.name for tensor in part],
                "dtypes": [tensor.dtype for tensor in part],
                "shapes": [list(tensor.shape) for tensor in part],
                "group_name": self._name,
                # Flush with every bucket: no cached value may remain after the last one.
                "flush_cache": True,
            }
            await self._ask("/update_weights_from_distributed", body)
        await self._ask("/end_weight_update", {})

    async def leave(self) -> None:
        """Make all processes leave the group."""
        await self._ask("/destroy_weights_update_group", {"group_name": self._name})


def _buckets(tensors: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    part: list[TensorSpec] = []
    size = 0
    for tensor in tensors:
        own = math.prod(tensor.shape) * _MOST_ITEM_BYTES
        if part and size + own > _BUCKET_BYTES:
            yield part
            part, size = [], 0
        part.append(tensor)
        size += own
    if part:
        yield part
