"""Choice of the replica for a request: pure bookkeeping."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_BLOCK = 64
_REMEMBERED = 65536


@dataclass(slots=True)
class Router:
    """Routes prompts to replicas that probably have their beginning cached.

    If such a replica is much busier than the idlest one, the latter is chosen. Prompts are compared
    by blocks of tokens, as in servers' caches. The latest blocks and their replicas are remembered;
    replicas are not queried.

    :param replicas: number of replicas.
    :param imbalance: number of requests that a replica may have more than the idlest one before its
        cache is ignored.
    :ivar load: number of requests of each replica.
    :ivar down: replicas that must not receive requests.
    """

    replicas: int
    imbalance: int = 8
    load: list[int] = field(init=False)
    down: set[int] = field(default_factory=set)
    _homes: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError("a router needs at least one replica")
        self.load = [0] * self.replicas

    def grow(self) -> None:
        """Add a replica, which is down."""
        self.down.add(self.replicas)
        self.load.append(0)
        self.replicas += 1

    def choose(self, prompt_ids: Sequence[int]) -> int | None:
        """Return the replica for a prompt, None if all are down. Call `begin` when sending it."""
        up = [number for number in range(self.replicas) if number not in self.down]
        if not up:
            return None
        idlest = min(up, key=lambda number: self.load[number])
        if len(up) == 1:
            return idlest
        for block in reversed(list(_blocks(prompt_ids))):
            home = self._homes.get(block)
            if home is not None and home not in self.down:
                busier = self.load[home] - self.load[idlest]
                return home if busier <= self.imbalance else idlest
        return idlest

    def begin(self, replica: int, prompt_ids: Sequence[int]) -> None:
        """Record that a request was sent."""
        self.load[replica] += 1
        if self.replicas == 1:
            return
        for block in _blocks(prompt_ids):
            self._homes[block] = replica
            self._homes.move_to_end(block)
        while len(self._homes) > _REMEMBERED:
            self._homes.popitem(last=False)

    def end(self, replica: int) -> None:
        """Record that a request is over."""
        self.load[replica] -= 1

    def forget(self) -> None:
        """Forget all blocks, because caches were cleared."""
        self._homes.clear()


def _blocks(prompt_ids: Sequence[int]) -> Iterator[int]:
    """Yield a hash for each complete block, which depends on all tokens up to its end."""
    chained = 0
    for start in range(0, len(prompt_ids) - _BLOCK + 1, _BLOCK):
        chained = hash((chained, *prompt_ids[start : start + _BLOCK]))
        yield chained
