"""What is the same for endpoints of all APIs: promises, streams, halts and counters."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar

from ajet_core.errors import (
    AjetError,
    ContextLengthError,
    EngineError,
    RequestError,
    UnsupportedError,
)
from ajet_core.interfaces import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    SamplingParams,
    WeightUpdate,
)
from ajet_core.protocol import ModelConfig
from ajet_engines.served import HttpClient, ModelServer, Piece, ServerGoneError, ServerRefusedError
from ajet_engines.served.launching import model_config
from ajet_engines.served.probing import PROBE, PROBED_IDS, is_scaled, is_whole, probed

Event = dict[str, Any]
Reader = Callable[[Event], Piece]

_TOO_LONG = ("context length", "maximum allowed length", "exceed")


class TokenServer(ModelServer):
    """An endpoint that takes and returns token ids.

    Requests are always streamed, so that the tokens sampled so far are known when a request is
    interrupted. Interrupting closes its connection, which is what every endpoint understands.

    :cvar path: route that samples.
    :param loads: whether the endpoint loads new weights.
    """

    path: ClassVar[str]

    def __init__(self, http: HttpClient, model: ModelConfig, *, loads: bool) -> None:
        self.http = http
        self.model = model
        self._loads = loads
        self._scales = self._cuts = True
        self._halted = False
        # One future for each request that is sent; setting it ends the request.
        self._ends: set[asyncio.Future[None]] = set()
        self._prompt_tokens = self._cached_tokens = self._sampled_tokens = 0

    @abstractmethod
    async def room(self) -> int | None:
        """Return the tokens that a prompt and its completion may have together, if it says so."""

    @abstractmethod
    def body(self, request: GenerateRequest) -> dict[str, Any]:
        """Return the body of a request, streamed."""

    @abstractmethod
    def reader(self, request: GenerateRequest) -> Reader:
        """Return what makes a piece of each event of the answer.

        It raises `EngineError` if the event has no token ids, or no logprobs.
        """

    @abstractmethod
    async def reload(self, directory: str) -> None:
        """Load weights and empty all caches, ending requests that still run."""

    async def healthy(self) -> bool:
        """Return whether the endpoint answers."""
        return await self.http.answers("/health")

    async def prepare(self) -> EngineInfo:
        """Check what the endpoint promises, and return what it serves.

        :raises EngineError: its answers cannot be trained on.
        """
        config = model_config(self.model)
        limits = [self.model.max_context, await self.room(), config.get("max_position_embeddings")]
        known = [int(limit) for limit in limits if limit]
        if not known:
            raise EngineError(
                f"neither {self.http.address} nor the model says how many tokens fit into its "
                "context: set model.max_context"
            )
        await self._check()
        return EngineInfo(min(known), int(config["vocab_size"]))

    async def _check(self) -> None:
        """Learn from four short requests what the endpoint's logprobs and stop tokens mean."""
        _, once = await probed(self._sample, PROBE)
        if not once:
            raise EngineError(f"{self.http.address} returned no top_logprobs, which are needed")
        _, twice = await probed(self._sample, replace(PROBE, temperature=2.0))
        self._scales = is_scaled(once, twice)
        greedy = replace(PROBE, temperature=0.0, max_tokens=2)
        answer = await self._whole(greedy)
        stopped = await self._whole(replace(greedy, stop_token_ids=(answer.token_ids[0],)))
        if stopped.token_ids != answer.token_ids[:1] or stopped.finish_reason != "stop":
            raise EngineError(
                f"{self.http.address} does not stop at a stop token, or leaves it out: it returned "
                f"{stopped.token_ids} ({stopped.finish_reason}) where {answer.token_ids[:1]} "
                "was to end the answer"
            )
        _, cut = await probed(self._sample, replace(PROBE, top_k=1, top_logprobs=2))
        self._cuts = is_whole(cut, once)

    async def _whole(self, sampling: SamplingParams) -> Piece:
        """Sample after the probed prompt."""
        ids: list[int] = []
        logprobs: list[float] = []
        reason = None
        async for piece in self._sample(GenerateRequest("check", list(PROBED_IDS), sampling)):
            ids += piece.token_ids
            logprobs += piece.logprobs
            reason = piece.finish_reason
        return Piece(ids, logprobs, reason)

    def sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Sample one completion.

        :raises UnsupportedError: the endpoint's logprobs would not be those of the policy.
        """
        sampling = request.sampling
        if sampling.temperature not in (0, 1) and not self._scales:
            raise UnsupportedError(
                "this endpoint returns logprobs at temperature 1, whatever the temperature is: "
                "use temperature 1",
                param="temperature",
            )
        if sampling.temperature > 0 and not self._cuts and (sampling.top_p < 1 or sampling.top_k):
            raise UnsupportedError(
                "this endpoint does not return logprobs of the whole distribution together with "
                "top_p or top_k: leave them out",
                param="top_p" if sampling.top_p < 1 else "top_k",
            )
        return self._sample(request)

    async def _sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        if self._halted:
            return
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.add(end)
        self._prompt_tokens += len(request.prompt_ids)
        read = self.reader(request)
        last: Piece | None = None
        try:
            async with aclosing(_until(self.http.events(self.path, self.body(request)), end)) as it:
                async for event in it:
                    _raise_error(event)
                    piece = read(event)
                    if len(piece.token_ids) != len(piece.logprobs):
                        raise EngineError(
                            f"{self.http.address} returned {len(piece.token_ids)} token ids with "
                            f"{len(piece.logprobs)} logprobs"
                        )
                    self._sampled_tokens += len(piece.token_ids)
                    self._cached_tokens += piece.cached_tokens or 0
                    if last is not None:
                        # After the last token, only counts follow.
                        last = replace(last, cached_tokens=piece.cached_tokens)
                    elif piece.finish_reason is not None:
                        last = piece
                    elif piece.token_ids:
                        yield piece
            if last is not None:
                yield last
        except ServerRefusedError as error:
            raise _refusal(error) from error
        finally:
            self._ends.discard(end)

    async def halt(self) -> None:
        """End all requests by closing their connections."""
        self._halted = True
        for end in self._ends:
            if not end.done():
                end.set_result(None)

    async def go_on(self) -> None:
        """Accept requests again."""
        self._halted = False

    async def load(self, update: WeightUpdate) -> None:
        """Make the endpoint load a directory; one with fixed weights has them.

        :raises EngineError: the endpoint refused.
        """
        if not self._loads:
            return
        try:
            await self.reload(update.location)
        except ServerRefusedError as error:
            raise EngineError(
                f"{self.http.address} cannot load weights ({error}): start it in such a way that "
                "it can, or set engine.settings.weights to 'fixed'"
            ) from error

    async def stats(self) -> EngineStats:
        """Return the counts of this client's requests."""
        return EngineStats(
            running=len(self._ends),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            sampled_tokens=self._sampled_tokens,
        )

    async def sleep(self) -> None:
        """Refuse: no API in general frees an endpoint's memory."""
        raise EngineError("endpoints cannot sleep")

    async def wake(self) -> None:
        """Refuse, as `sleep` does."""
        raise EngineError("endpoints cannot sleep")

    async def close(self) -> None:
        """Close the connections."""
        await self.http.close()


async def _until(
    events: AsyncIterator[Event], end: asyncio.Future[None]
) -> AsyncGenerator[Event, None]:
    """Yield events until there are no more or `end` is set, then close them."""
    async with aclosing(events):  # type: ignore[type-var]
        while True:
            following = asyncio.ensure_future(anext(events))
            either: set[asyncio.Future[Any]] = {following, end}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not following.done():
                    following.cancel()
                    await asyncio.wait({following})
            if following.cancelled():
                return
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            yield event


def _raise_error(event: Event) -> None:
    """Raise an error that arrived within a stream."""
    error = event.get("error")
    if isinstance(error, dict):
        raise ServerRefusedError(int(error.get("code") or 500), str(error.get("message")))
    if error is not None:
        raise ServerRefusedError(500, str(error))


def _refusal(error: ServerRefusedError) -> AjetError | ServerGoneError:
    """Translate a refusal; a server error counts as a gone server until it answers again."""
    if error.status >= 500:
        return ServerGoneError(str(error))
    if any(words in error.message for words in _TOO_LONG):
        return ContextLengthError(error.message, param="prompt_ids")
    return RequestError(f"the endpoint refused the request: {error.message}")
