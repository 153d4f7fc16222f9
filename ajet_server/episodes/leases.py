"""Find expired leases without checking all the others."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class LeaseWatch:
    """Keeps a time for each lease at which to check it; leases may be renewed without notice."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, str]] = []

    def add(self, expires_at: float, episode_id: str) -> None:
        """Watch a lease."""
        heapq.heappush(self._looks, (expires_at, episode_id))

    def expired(self, now: float, ends: Callable[[str], float | None]) -> list[str]:
        """Return expired leases; each is checked again unless `ends` returns None for it.

        :param ends: returns when an episode's lease expires, None if the episode is not open. The
            time may be later than that given to `add`, never earlier.
        """
        expired: list[str] = []
        seen: list[tuple[float, str]] = []
        while self._looks and self._looks[0][0] <= now:
            _, episode_id = heapq.heappop(self._looks)
            expires_at = ends(episode_id)
            if expires_at is None:
                continue
            if expires_at <= now:
                expired.append(episode_id)
            seen.append((expires_at, episode_id))
        for look in seen:
            heapq.heappush(self._looks, look)
        return expired

    def next_look(self) -> float | None:
        """Return when to check the next lease, None if there is none."""
        return self._looks[0][0] if self._looks else None
