"""A vLLM server as one that weights are broadcast to."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ajet_engines.collective import Backend, Group, GroupMember, TensorSpec

Rpc = Callable[[str, dict[str, Any]], Awaitable[list[Any]]]


class VllmMember(GroupMember):
    """Its workers receive, by methods of our extension.

    :param rpc: calls a method of all workers, with text as arguments; what each of them answers.
    """

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._ranks = 0
        self._backends: list[Backend] = []

    async def prepare(self) -> None:
        """Ask the workers what they are; called before anything else."""
        found = await self._rpc("ajet_collectives", {})
        self._ranks = len(found)
        self._backends = found[0]

    def ranks(self) -> int:
        """One for each worker."""
        return self._ranks

    def backends(self) -> list[Backend]:
        """As the workers say."""
        return self._backends

    async def join(self, group: Group) -> None:
        """Have all workers join."""
        await self._rpc("ajet_join_group", {"group": group.model_dump_json()})

    async def take(self, tensors: Sequence[TensorSpec]) -> None:
        """Have all workers receive, and load what they receive."""
        described = json.dumps([tensor.model_dump() for tensor in tensors])
        await self._rpc("ajet_receive_weights", {"tensors": described})

    async def leave(self) -> None:
        """Have all workers leave."""
        await self._rpc("ajet_leave_group", {})
