"""What a server said last, asked again as often as the live page asks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from agentjet.client import AsyncViewClient
from ajet_core.errors import AjetError, ServerUnreachableError
from ajet_server.page.models import Overview, StepCurves

_POINTS = 300
_FIRST_SECONDS = 5.0


class ServerWatch:
    """One server: its last overview and curves, and why there are no newer ones.

    :param client: the server's client, which this object closes.
    :param changed: called after each answer and each failure.
    :param clock: Unix seconds.
    :param rng: spreads the requests of several monitors.
    :ivar overview: None until the server has answered.
    :ivar failure: why the last request failed; None if it did not.
    :ivar failing_since: Unix seconds of the first of the requests that failed since the last
        answer.
    """

    def __init__(
        self,
        client: AsyncViewClient,
        changed: Callable[[ServerWatch], None],
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.client = client
        self.overview: Overview | None = None
        self.curves: StepCurves | None = None
        self.failure: AjetError | None = None
        self.failing_since = 0.0
        self._changed = changed
        self.clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._drawn: tuple[object, ...] = ()
        self._again = asyncio.Event()

    @property
    def url(self) -> str:
        """The server's URL."""
        return self.client.url

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._again.clear()
                await self.refresh()
                pause = self.overview.again_seconds if self.overview else _FIRST_SECONDS
                try:
                    # Monitors must not all ask at the same moment.
                    async with asyncio.timeout(pause * self._rng.uniform(0.9, 1.1)):
                        await self._again.wait()
                except TimeoutError:
                    pass
        finally:
            await self.client.close()

    def ask_now(self) -> None:
        """End the pause between two requests."""
        self._again.set()

    async def refresh(self) -> None:
        """Ask once."""
        try:
            self.overview = await self.client.get("/v1/overview", Overview)
            status = self.overview.status
            last = status.last_step.step if status.last_step else None
            key = (status.run_id, last, status.step)
            if key != self._drawn:
                self.curves = await self.client.get("/v1/steps", StepCurves, {"points": _POINTS})
                self._drawn = key
        except AjetError as error:
            self.failing_since = self.failing_since if self.failure else self.clock()
            self.failure = error
        else:
            self.failure = None
        self._changed(self)


def problem(error: AjetError) -> str:
    """Return why a request failed, in the page's words if there was no answer."""
    if isinstance(error, ServerUnreachableError):
        return "The server does not answer."
    return error.message
