"""Whether an engine gets anywhere with the calls that wait for it."""

from __future__ import annotations

from ajet_core.errors import EngineError
from ajet_core.interfaces import EngineStats


class EngineWatch:
    """Notices an engine that answers when asked how it is, but samples nothing.

    :param limit: seconds without progress, with calls waiting, after which it is given up.
    :ivar stalled: seconds without progress as of the last look, 0 if there was some or nothing to do.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._done: tuple[int, int] | None = None
        self._since: float | None = None
        self.stalled = 0.0

    def forget(self) -> None:
        """Begin anew: the engine was paused, and is not to blame."""
        self._done, self._since, self.stalled = None, None, 0.0

    def note(self, stats: EngineStats, calls: int, now: float) -> None:
        """Look at the engine's counters while it has these many calls.

        :raises EngineError: nothing has moved for too long.
        """
        done = (stats.prompt_tokens, stats.sampled_tokens)
        if calls == 0 or done != self._done or self._since is None:
            self._done, self._since, self.stalled = done, now if calls else None, 0.0
            return
        self.stalled = stalled = now - self._since
        if stalled > self._limit:
            self.forget()
            raise EngineError(
                f"the engine has sampled nothing for {stalled:.0f} s though {calls} calls wait for it; its worker is "
                "replaced (setting server.engine_stall_seconds)"
            )
