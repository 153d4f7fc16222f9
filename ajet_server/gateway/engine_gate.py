"""Pass calls to the engine: calls wait for a running engine and survive its worker's death."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from ajet_core.errors import DeadlineError, EngineError, WorkerDiedError, WorkerError
from ajet_core.interfaces import GenerateChunk, GenerateRequest, ServingEngine
from ajet_core.protocol import ServerState
from ajet_server.state import StateBoard

_log = logging.getLogger("ajet.server")


class EngineGate:
    """Passes calls to the engine.

    While the server boots or replaces the engine's worker, calls wait. A call whose worker died
    continues in the next one from the tokens sampled so far, so its client notices only a pause.

    :param deadline: seconds that a call may wait for an engine.
    :ivar running: number of calls that an engine is working on.
    :ivar elsewhere: the same for other processes of the server.
    """

    def __init__(self, board: StateBoard, deadline: float) -> None:
        self._board = board
        self._deadline = deadline
        self._engine: ServingEngine | None = None
        self.running = 0
        self.elsewhere = 0

    @property
    def is_open(self) -> bool:
        """Whether calls reach an engine."""
        return self._engine is not None

    def open(self, engine: ServingEngine) -> None:
        """Send calls to `engine` from now on."""
        self._engine = engine
        self._board.touch()

    def shut(self) -> None:
        """Make calls wait until `open`."""
        self._engine = None
        self._board.touch()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """As `ajet_core.interfaces.ServingEngine.generate`.

        :raises NotRollingError: no run is active.
        :raises DeadlineError: no engine was ready in time.
        """
        sampled: list[int] = []
        version = 0
        while True:
            rest = request.continued(sampled)
            if rest.sampling.max_tokens <= 0:
                yield GenerateChunk([], [], version, "length")
                return
            engine = await self._ready()
            chunks = engine.generate(rest)
            self.running += 1
            try:
                async for chunk in chunks:
                    version = chunk.policy_version
                    sampled += chunk.token_ids
                    yield chunk
                return
            except WorkerDiedError:
                if self._engine is engine:
                    self.shut()
            except WorkerError as error:
                # The message holds a traceback and possibly other clients' text: agents must not
                # see it.
                _log.error("a call failed in %s: %s", engine, error.message)
                raise EngineError(
                    "the engine failed; see the server's log for the details"
                ) from None
            finally:
                self.running -= 1
                # Close now, not at garbage collection: closing cancels the call in the worker.
                if isinstance(chunks, AsyncGenerator):
                    await chunks.aclose()

    async def _ready(self) -> ServingEngine:
        if (engine := self._engine) is not None:
            return engine

        def decided() -> bool:
            return self._engine is not None or self._board.state is ServerState.OFFLINE

        try:
            async with asyncio.timeout(self._deadline):
                await self._board.wait_until(decided)
        except TimeoutError as error:
            raise DeadlineError(
                f"no engine became ready within {self._deadline:.0f} s (the server is "
                f"{self._board.state}; setting server.call_deadline_seconds)",
                retry_after=5.0,
            ) from error
        if self._engine is None:
            raise self._board.not_running()
        return self._engine
