"""Which clients share a run: what the episodes of one of them cause must not stop the others. Pure: no I/O, no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

RECENT_BATCHES = 20
"""A client takes part in a run until so many batches were trained since its last episode."""


class Sharing:
    """The clients that take part in a run.

    :param active: those that roll out at present, or wait to.
    """

    def __init__(self, active: Callable[[], Set[str]]) -> None:
        self._active = active
        self._batches = 0
        # By client: how many batches there were when it was seen last.
        self._seen: dict[str, int] = {}

    def seen(self, client: str) -> None:
        """Note that an episode of a client is over."""
        self._seen[client] = self._batches

    def batch(self, clients: Iterable[str]) -> None:
        """Note a batch that was trained, and whose episodes it has."""
        self._batches += 1
        for client in clients:
            self.seen(client)

    def others(self, clients: Set[str]) -> bool:
        """Whether other clients than these take part."""
        oldest = self._batches - RECENT_BATCHES
        recent = {client for client, at in self._seen.items() if at > oldest}
        return bool((recent | self._active()) - clients)
