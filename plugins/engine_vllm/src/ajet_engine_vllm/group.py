"""A vLLM server as a receiver of weight broadcasts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ajet_engines.collective import Backend, Group, GroupMember, TensorSpec

Rpc = Callable[[str, dict[str, Any]], Awaitable[list[Any]]]


class VllmMember(GroupMember):
    """A server whose workers receive the weights, through methods of agentjet's worker extension.

    :param rpc: calls a method of all workers with text arguments, and returns each worker's answer.
    """

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._ranks = 0
        self._backends: list[Backend] = []

    async def prepare(self) -> None:
        """Read the workers' properties; call this before any other method."""
        properties = await self._rpc("ajet_collectives", {})
        self._ranks = len(properties)
        self._backends = properties[0]

    def ranks(self) -> int:
        """Return the number of workers."""
        return self._ranks

    def backends(self) -> list[Backend]:
        """Return the backends that the workers support."""
        return self._backends

    async def join(self, group: Group) -> None:
        """Make all workers join the group."""
        await self._rpc("ajet_join_group", {"group": group.model_dump_json()})

    async def take(self, tensors: Sequence[TensorSpec]) -> None:
        """Make all workers receive and load the tensors."""
        described = json.dumps([tensor.model_dump() for tensor in tensors])
        await self._rpc("ajet_receive_weights", {"tensors": described})

    async def leave(self) -> None:
        """Make all workers leave the group."""
        await self._rpc("ajet_leave_group", {})
