"""An SGLang server as one that weights are broadcast to, by SGLang's own routes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from ajet_engines.collective import Backend, Group, GroupMember, TensorSpec

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]

# SGLang holds so much in memory beside the model at a time.
_BUCKET_BYTES = 1 << 30
_MOST_ITEM_BYTES = 8


class SglangMember(GroupMember):
    """Its processes receive.

    :param ask: posts JSON to a route.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._name = ""
        self._ranks = 0
        self._backends: list[Backend] = []

    def describe(self, ranks: int, *, gpu: bool) -> None:
        """Say what the server is; called before anything else.

        :param ranks: of tensor parallelism.
        """
        self._ranks = ranks
        self._backends = ["nccl", "gloo"] if gpu else ["gloo"]

    def ranks(self) -> int:
        """One for each part of the tensors."""
        return self._ranks

    def backends(self) -> list[Backend]:
        """By the server's device."""
        return self._backends

    async def join(self, group: Group) -> None:
        """Have all processes join."""
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
        """Have all processes receive one part of the tensors after the other."""
        await self._ask("/begin_weight_update", {})
        for part in _buckets(tensors):
            body = {
                "names": [tensor.name for tensor in part],
                "dtypes": [tensor.dtype for tensor in part],
                "shapes": [list(tensor.shape) for tensor in part],
                "group_name": self._name,
                # Of what is cached nothing may be left, whichever part was the last.
                "flush_cache": True,
            }
            await self._ask("/update_weights_from_distributed", body)
        await self._ask("/end_weight_update", {})

    async def leave(self) -> None:
        """Have all processes leave."""
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
