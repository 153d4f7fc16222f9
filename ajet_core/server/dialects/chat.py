"""OpenAI chat completions on top of a token-level engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ajet_core.errors import ContextLengthError, EngineError, UnsupportedError
from ajet_core.interfaces.engine import (
    EngineCapabilities,
    EngineInfo,
    GenerateRequest,
    SamplingParams,
)
from ajet_core.server.dialects.answer import Answer, TokenHex, make_answer, random_hex
from ajet_core.server.dialects.chat_json import (
    ChoiceWriter,
    choice_json,
    models_list,
    usage_json,
)
from ajet_core.server.dialects.chat_request import ChatRequest
from ajet_core.server.dialects.deltas import DeltaStream
from ajet_core.server.dialects.exchange import Exchange, Record, Session
from ajet_core.server.dialects.generation import EngineHandle, Generation, sample
from ajet_core.server.dialects.json_text import list_text, object_text
from ajet_core.server.dialects.merging import gathered, merged
from ajet_core.server.dialects.recording import CallRecorder
from ajet_core.server.dialects.stopping import StopScanner
from ajet_core.server.rendering.prompting import Asked, Written
from ajet_core.server.rendering.renderer import ChatRenderer

__all__ = ["ChatService", "EngineHandle", "Record", "Session", "models_list"]

# Threads that make prompts of long requests.
_RENDERING_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class _Choice:
    """A finished choice."""

    generation: Generation
    answer: Answer
    finish_reason: str


class ChatService:
    """Answers chat requests for the episodes of a run.

    :param model_name: what answers say the model is, whatever the request called it.
    :param clock: unix seconds.
    :param token_hex: source of the random ids of completions and tool calls.
    """

    def __init__(  # noqa: PLR0917 - all are needed, in the order of a request's way
        self,
        renderer: ChatRenderer,
        engine: EngineHandle,
        model_name: str,
        info: EngineInfo,
        capabilities: EngineCapabilities,
        clock: Callable[[], float],
        *,
        token_hex: TokenHex = random_hex,
    ) -> None:
        self._renderer = renderer
        self._engine = engine
        self._model_name = model_name
        self._info = info
        self._capabilities = capabilities
        self._clock = clock
        self._token_hex = token_hex
        self._recorder = CallRecorder(renderer)
        # They share the interpreter with the event loop, which is to have its part of it.
        self._rendering = asyncio.Semaphore(_RENDERING_AT_ONCE)

    async def complete(
        self, session: Session, request: ChatRequest, record: Record, agent: str = ""
    ) -> bytes:
        """JSON of a chat completion. Every choice is a call of the episode.

        If this is cancelled, what was sampled so far is recorded with the finish reason "abort".

        :param agent: name of the agent that asks.
        :raises ContextLengthError: prompt and completion do not fit into the model's context.
        :raises UnsupportedError: the engine cannot do what is asked.
        :raises RequestError: the model's template cannot express the messages.
        :raises EngineError: the engine failed.
        """
        begun = self._begin(session, request, record, agent)
        exchange = begun if isinstance(begun, Exchange) else await begun()
        if request.n == 1:
            choices = [await self._choice(exchange, 0)]
        else:
            choices = await gathered(self._choice(exchange, i) for i in range(request.n))
        completion: dict[str, Any] = {
            "id": exchange.completion_id,
            "object": "chat.completion",
            "created": int(exchange.created_at),
            "model": self._model_name,
            "usage": usage_json(len(exchange.prompt.ids), [c.generation for c in choices]),
        }
        if request.return_token_ids:
            completion["prompt_token_ids"] = exchange.prompt.ids
        texts = [
            choice_json(i, request, c.generation, c.answer, c.finish_reason)
            for i, c in enumerate(choices)
        ]
        return object_text(completion, choices=list_text(texts))

    def stream(
        self, session: Session, request: ChatRequest, record: Record, agent: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """The same completion as JSON of chunks.

        What `complete` raises before sampling is raised at once, or, if the prompt is so long that it is made
        on a thread, with the first chunk. That comes with the engine's first token, so an error before that can still be
        answered as one. Closing the generator ends the calls, as cancelling does.
        """
        return self._stream(self._begin(session, request, record, agent))

    def _begin(
        self, session: Session, request: ChatRequest, record: Record, agent: str
    ) -> Exchange | Callable[[], Awaitable[Exchange]]:
        """The exchange; if making its prompt takes long, what makes it without stopping the event loop."""
        if request.seed is not None and not self._capabilities.seed:
            raise UnsupportedError(
                "seed is not supported by this server's engine: leave it out", param="seed"
            )
        if request.top_logprobs > self._capabilities.max_top_logprobs:
            raise UnsupportedError(
                f"top_logprobs: this server's engine lists at most "
                f"{self._capabilities.max_top_logprobs} tokens",
                param="top_logprobs",
            )
        asked = session.index.asked(request.messages, request.tools)
        work = asked.write_or_defer(self._renderer, self._renderer.quick_characters)
        if isinstance(work, Written):
            return self._exchange(session, request, record, agent, asked, work)

        async def begin() -> Exchange:
            async with self._rendering:
                written = await asyncio.to_thread(work)
            return self._exchange(session, request, record, agent, asked, written)

        return begin

    def _exchange(  # noqa: PLR0917 - what `_begin` was given, and what it made
        self,
        session: Session,
        request: ChatRequest,
        record: Record,
        agent: str,
        asked: Asked,
        written: Written,
    ) -> Exchange:
        prompt = session.index.made(asked, written)
        self._check_context(len(prompt.ids), request.max_tokens)
        created_at = self._clock()
        # Names that begin with the time lie together in a store's index; random ones each touch a page of their own.
        milliseconds = int(created_at * 1000)
        return Exchange(
            session=session,
            request=request,
            prompt=prompt,
            record=record,
            agent=agent,
            completion_id=f"chatcmpl-{milliseconds:012x}{self._token_hex(6)}",
            created_at=created_at,
        )

    def _check_context(self, prompt: int, completion: int | None) -> None:
        limit = self._info.max_context
        if prompt >= limit:
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens. However, your messages "
                f"resulted in {prompt} tokens. Please reduce the length of the messages.",
                param="messages",
            )
        if completion is not None and prompt + completion > limit:
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{prompt + completion} tokens ({prompt} in the messages, {completion} in the "
                "completion). Please reduce the length of the messages or completion.",
                param="max_tokens",
            )

    def _generation(self, exchange: Exchange, choice: int) -> Generation:
        request = exchange.request
        prompt_ids = exchange.prompt.ids
        max_tokens = request.max_tokens or self._info.max_context - len(prompt_ids)
        sampling = SamplingParams(
            max_tokens=min(max_tokens, request.most_tokens or max_tokens),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=None if request.seed is None else request.seed + choice,
            stop_token_ids=self._renderer.stop_token_ids,
            top_logprobs=request.top_logprobs,
        )
        asked = GenerateRequest(
            request_id=exchange.call_id(choice),
            prompt_ids=prompt_ids,
            sampling=sampling,
            stream=request.stream or bool(request.stop),
        )
        scanner = StopScanner(self._renderer, request.stop) if request.stop else None
        return Generation(asked, self._renderer, scanner)

    async def _choice(self, exchange: Exchange, choice: int) -> _Choice:
        generation = self._generation(exchange, choice)
        try:
            async with aclosing(sample(self._engine, generation)) as progress:
                async for _ in progress:
                    pass
        except asyncio.CancelledError:
            await self._recorder.aborted(exchange, generation)
            raise
        return await self._finished(exchange, generation, self._answer(exchange, generation))

    async def _stream(
        self, begun: Exchange | Callable[[], Awaitable[Exchange]]
    ) -> AsyncGenerator[bytes, None]:
        exchange = begun if isinstance(begun, Exchange) else await begun()
        request = exchange.request
        generations = [self._generation(exchange, i) for i in range(request.n)]
        parts = [self._stream_choice(exchange, i, g) for i, g in enumerate(generations)]
        async with aclosing(merged(parts)) as chunks:
            async for chunk in chunks:
                yield chunk
        if request.include_usage:
            yield self._chunk(exchange, usage=usage_json(len(exchange.prompt.ids), generations))

    async def _stream_choice(
        self, exchange: Exchange, choice: int, generation: Generation
    ) -> AsyncGenerator[bytes, None]:
        writer = ChoiceWriter(exchange.request, choice, generation)
        deltas = DeltaStream(generation, exchange.request.tools)
        started = False
        try:
            async with aclosing(sample(self._engine, generation)) as progress:
                async for _ in progress:
                    if not started:
                        started = True
                        told = exchange.request.return_token_ids
                        prompt = {"prompt_token_ids": exchange.prompt.ids} if told else {}
                        yield self._chunk(exchange, writer.choice({"role": "assistant"}), **prompt)
                    delta = deltas.grown()
                    if delta is not None or writer.has_tokens:
                        yield self._chunk(exchange, writer.choice(delta or {}))
        except (asyncio.CancelledError, GeneratorExit):
            await self._recorder.aborted(exchange, generation)
            raise
        answer = deltas.given(self._answer(exchange, generation))
        done = await self._finished(exchange, generation, answer)
        for delta in deltas.rest(answer):
            yield self._chunk(exchange, writer.choice(delta))
        yield self._chunk(exchange, writer.choice({}, done.finish_reason))

    def _chunk(self, exchange: Exchange, *choices: bytes, **more: Any) -> bytes:
        chunk: dict[str, Any] = {
            "id": exchange.completion_id,
            "object": "chat.completion.chunk",
            "created": int(exchange.created_at),
            "model": self._model_name,
        }
        if exchange.request.include_usage:
            chunk["usage"] = None
        return object_text({**chunk, **more}, choices=list_text(choices))

    def _answer(self, exchange: Exchange, generation: Generation) -> Answer:
        tools = exchange.request.tools
        parsed = self._renderer.parse(generation.visible_ids(), exchange.prompt.ids, tools)
        return make_answer(parsed, tools_offered=tools is not None, token_hex=self._token_hex)

    async def _finished(
        self, exchange: Exchange, generation: Generation, answer: Answer
    ) -> _Choice:
        """Record a choice that is complete; from then on the conversation can go on from it."""
        reason = generation.finish_reason or "abort"
        if reason == "abort":
            await self._recorder.aborted(exchange, generation)
            raise EngineError(
                f"the engine aborted call {generation.request.request_id}", retry_after=1.0
            )
        await self._recorder.finished(exchange, generation, answer.message)
        called = answer.tool_calls and reason == "stop" and not generation.stopped_by_text
        return _Choice(generation, answer, "tool_calls" if called else reason)
