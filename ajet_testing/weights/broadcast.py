"""A receiver for the weight channel ``collective`` without model server: ranks are threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ajet_core.errors import EngineError
from ajet_core.interfaces import WeightUpdate
from ajet_engines.collective import Backend, Group, GroupMember, TensorSpec, WeightReceiver
from ajet_engines.collective.sender import meet


class ThreadedMember(GroupMember):
    """Receives on the CPU.

    :param ranks: number of threads, each of which is a rank.
    :ivar received: tensors by name, the same in all ranks.
    :ivar joined: how often it joined.
    :ivar left: how often it left.
    :ivar fails: if set, `join` raises.
    """

    def __init__(self, ranks: int = 1, backends: Sequence[Backend] = ("gloo",)) -> None:
        self.received: dict[str, Any] = {}
        self.joined = self.left = 0
        self.fails = False
        self._ranks = ranks
        self._backends = list(backends)
        # (store, group) by rank.
        self._groups: list[tuple[Any, Any]] = []

    def ranks(self) -> int:
        """Return the number of threads."""
        return self._ranks

    def backends(self) -> list[Backend]:
        """Return the given backends."""
        return self._backends

    async def join(self, group: Group) -> None:
        """Join the group, with one thread per rank."""
        self.joined += 1
        if self.fails:
            raise EngineError("the server cannot join")
        met = [asyncio.to_thread(meet, group, 1 + rank, None) for rank in range(self._ranks)]
        self._groups = list(await asyncio.gather(*met))

    async def take(self, tensors: Sequence[TensorSpec]) -> None:
        """Receive the tensors.

        :raises EngineError: the ranks received different tensors.
        """
        receiving = [asyncio.to_thread(_receive, group, tensors) for _, group in self._groups]
        first, *others = await asyncio.gather(*receiving)
        for other in others:
            if any(not tensor.equal(other[name]) for name, tensor in first.items()):
                raise EngineError("the ranks of a group received different tensors")
        self.received = first

    async def leave(self) -> None:
        """Forget the group."""
        self.left += 1
        self._groups = []


def receive_once(update: WeightUpdate) -> dict[str, Any]:
    """Receive the tensors of an update, by name; no event loop may run in this thread."""

    async def receive() -> dict[str, Any]:
        member = ThreadedMember()
        receiver = WeightReceiver(member)
        await receiver.receive(update)
        await receiver.close()
        return member.received

    return asyncio.run(receive())


def _receive(group: Any, tensors: Sequence[TensorSpec]) -> dict[str, Any]:
    import torch
    from torch import distributed

    options = distributed.BroadcastOptions()
    options.rootRank = 0
    received = {}
    for spec in tensors:
        received[spec.name] = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
        group.broadcast([received[spec.name]], options).wait()
    return received
