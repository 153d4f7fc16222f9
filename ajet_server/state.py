"""The server's state and policy version, and waiting for changes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ajet_core.errors import NotRollingError
from ajet_core.protocol import ServerState
from ajet_server.observe.events import EventLog

_RESTART_SECONDS = 2.0

Listener = Callable[[ServerState], None]


class StateBoard:
    """Holds the state of the server.

    :param clock: seconds, monotonic.
    :ivar closing: whether the server process is about to end; its run resumes at the next start.
    :ivar since: clock time at which the present state started.
    :ivar policy_version: of the served weights: the number of steps that they have been trained.
    """

    def __init__(self, events: EventLog, clock: Callable[[], float]) -> None:
        self._events = events
        self._clock = clock
        self.since = clock()
        self._state = ServerState.OFFLINE
        self._changed = asyncio.Event()
        self._listeners: list[Listener] = []
        self.closing = False
        self.policy_version = 0

    @property
    def state(self) -> ServerState:
        """The present state."""
        return self._state

    @property
    def rolling(self) -> bool:
        """Whether episodes may be claimed."""
        return self._state is ServerState.ROLLING

    def listen(self, listener: Listener) -> None:
        """Call `listener` after every change of state."""
        self._listeners.append(listener)

    def set(self, state: ServerState) -> None:
        """Change the state; no effect if `state` is the present one."""
        if state is self._state:
            return
        self._state = state
        self.since = self._clock()
        self._events.emit("state", {"state": state, "policy_version": self.policy_version})
        self.touch()
        for listener in self._listeners:
            listener(state)

    def touch(self) -> None:
        """Wake all waiters in `wait_until` without a change of state."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def not_running(self) -> NotRollingError:
        """Return the error for requests that need a run while none is running."""
        if self.closing:
            return NotRollingError(
                "the server is shutting down; its run continues when the server is started again",
                retry_after=_RESTART_SECONDS,
            )
        return NotRollingError("no run is active: the server is OFFLINE; start a run first")

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is checked after every `set` and `touch`."""
        while not condition():
            await self._changed.wait()
