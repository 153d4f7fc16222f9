"""Detect an engine that makes no progress although calls wait for it."""

from __future__ import annotations

from ajet_core.errors import EngineError
from ajet_core.interfaces import EngineStats


class EngineWatch:
    """Detects an engine that answers status requests but samples nothing.

    :param limit: seconds without progress, while calls wait, after which the engine has failed.
    :ivar stalled: seconds without progress at the last check; 0 if there was progress or no call.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._done: tuple[int, int] | None = None
        self._since: float | None = None
        self.stalled = 0.0

    def forget(self) -> None:
        """Reset the measurement, for example after the server paused the engine."""
        self._done, self._since, self.stalled = None, None, 0.0

    def note(self, stats: EngineStats, calls: int, now: float) -> None:
        """Check the engine's counters for progress.

        :param calls: calls that the engine is working on.
        :param now: seconds, monotonic.
        :raises EngineError: the counters have not changed for longer than the limit.
        """
        done = (stats.prompt_tokens, stats.sampled_tokens)
        if calls == 0 or done != self._done or self._since is None:
            self._done, self._since, self.stalled = done, now if calls else None, 0.0
            return
        self.stalled = stalled = now - self._since
        if stalled > self._limit:
            self.forget()
            raise EngineError(
                f"the engine has sampled nothing for {stalled:.0f} s while {calls} calls "
                "wait for it; its worker is replaced (setting server.engine_stall_seconds)"
            )
