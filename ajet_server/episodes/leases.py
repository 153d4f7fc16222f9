"""Which leases have run out, without a look at those that have not."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class LeaseWatch:
    """Knows of every lease a time at which it is worth a look; leases may be renewed without telling."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, str]] = []

    def add(self, expires_at: float, episode_id: str) -> None:
        """Watch a lease."""
        heapq.heappush(self._looks, (expires_at, episode_id))

    def expired(self, now: float, ends: Callable[[str], float | None]) -> list[str]:
        """Leases that have run out; they are looked at again unless `ends` says that they are over.

        :param ends: when an episode's lease runs out as of now, None if it is not open any more; it may have
            become later since `add`, not earlier.
        """
        found: list[str] = []
        seen: list[tuple[float, str]] = []
        while self._looks and self._looks[0][0] <= now:
            _, episode_id = heapq.heappop(self._looks)
            expires_at = ends(episode_id)
            if expires_at is None:
                continue
            if expires_at <= now:
                found.append(episode_id)
            seen.append((expires_at, episode_id))
        for look in seen:
            heapq.heappush(self._looks, look)
        return found

    def next_look(self) -> float | None:
        """When the next lease is worth a look, None if there is none."""
        return self._looks[0][0] if self._looks else None
