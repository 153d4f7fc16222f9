"""Track which clients share a run, so that one cannot stop the others: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

RECENT_BATCHES = 20
"""The number of batches after its last episode for which a client still takes part in a run."""


class Sharing:
    """The clients that take part in a run.

    :param active: returns the clients that roll out at present, or wait to.
    """

    def __init__(self, active: Callable[[], Set[str]]) -> None:
        self._active = active
        self._batches = 0
        # By client: the number of batches when it was last seen.
        self._seen: dict[str, int] = {}

    def seen(self, client: str) -> None:
        """Record that an episode of a client is over."""
        self._seen[client] = self._batches

    def batch(self, clients: Iterable[str]) -> None:
        """Record a batch that was trained, and the clients with episodes in it."""
        self._batches += 1
        for client in clients:
            self.seen(client)

    def others(self, clients: Set[str]) -> bool:
        """Return whether clients other than these take part."""
        oldest = self._batches - RECENT_BATCHES
        recent = {client for client, at in self._seen.items() if at > oldest}
        return bool((recent | self._active()) - clients)
