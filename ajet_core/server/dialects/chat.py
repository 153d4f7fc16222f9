"""OpenAI chat completions on top of a token-level engine."""

from __future__ import annotations

import asyncio
import secrets
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
from ajet_core.server.dialects.answer import Answer, TokenHex, make_answer
from ajet_core.server.dialects.chat_json import (
    ChoiceWriter,
    choice_json,
    models_list,
    usage_json,
)
from ajet_core.server.dialects.chat_request import ChatRequest
from ajet_core.server.dialects.deltas import DeltaStream
from ajet_core.server.dialects.generation import EngineHandle, Generation, sample
from ajet_core.server.dialects.merging import gathered, merged
from ajet_core.server.dialects.stopping import StopScanner
from ajet_core.server.rendering.conversation import ConversationIndex, Prompt, answer_metadata
from ajet_core.server.rendering.renderer import ChatRenderer
from ajet_core.timeline import Call

__all__ = ["ChatService", "EngineHandle", "Record", "Session", "models_list"]

Record = Callable[[Call], Awaitable[None]]
"""Makes a call durable; awaited before its answer is given out."""


@dataclass(slots=True)
class Session:
    """An episode as the dialects know it.

    :param index: the episode's conversations.
    :param next_index: `Call.index` of the next call that completes.
    """

    episode_id: str
    index: ConversationIndex
    next_index: int = 0

    def take_index(self) -> int:
        """The next call's index."""
        index = self.next_index
        self.next_index += 1
        return index


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request that is being answered, with all that its choices have in common."""

    session: Session
    request: ChatRequest
    prompt: Prompt
    record: Record
    agent: str
    completion_id: str
    created_at: float

    def call_id(self, choice: int) -> str:
        return self.completion_id if self.request.n == 1 else f"{self.completion_id}-{choice}"


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
        token_hex: TokenHex = secrets.token_hex,
    ) -> None:
        self._renderer = renderer
        self._engine = engine
        self._model_name = model_name
        self._info = info
        self._capabilities = capabilities
        self._clock = clock
        self._token_hex = token_hex
        self._saving: set[asyncio.Future[None]] = set()

    async def complete(
        self, session: Session, request: ChatRequest, record: Record, agent: str = ""
    ) -> dict[str, Any]:
        """A chat completion as JSON-able data. Every choice is a call of the episode.

        If this is cancelled, what was sampled so far is recorded with the finish reason "abort".

        :param agent: name of the agent that asks.
        :raises ContextLengthError: prompt and completion do not fit into the model's context.
        :raises UnsupportedError: the engine cannot do what is asked.
        :raises RequestError: the model's template cannot express the messages.
        :raises EngineError: the engine failed.
        """
        exchange = self._begin(session, request, record, agent)
        if request.n == 1:
            choices = [await self._choice(exchange, 0)]
        else:
            choices = await gathered(self._choice(exchange, i) for i in range(request.n))
        completion: dict[str, Any] = {
            "id": exchange.completion_id,
            "object": "chat.completion",
            "created": int(exchange.created_at),
            "model": self._model_name,
            "choices": [
                choice_json(i, request, c.generation, c.answer, c.finish_reason)
                for i, c in enumerate(choices)
            ],
            "usage": usage_json(len(exchange.prompt.ids), [c.generation for c in choices]),
        }
        if request.return_token_ids:
            completion["prompt_token_ids"] = exchange.prompt.ids
        return completion

    def stream(
        self, session: Session, request: ChatRequest, record: Record, agent: str = ""
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The same completion as chunks; what `complete` raises before sampling is raised at once.

        The first chunk comes with the engine's first token, so an error before that can still be
        answered as one. Closing the generator ends the calls, as cancelling does.
        """
        return self._stream(self._begin(session, request, record, agent))

    def _begin(
        self, session: Session, request: ChatRequest, record: Record, agent: str
    ) -> _Exchange:
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
        prompt = session.index.prompt(self._renderer, request.messages, request.tools)
        self._check_context(len(prompt.ids), request.max_tokens)
        return _Exchange(
            session=session,
            request=request,
            prompt=prompt,
            record=record,
            agent=agent,
            completion_id=f"chatcmpl-{self._token_hex(12)}",
            created_at=self._clock(),
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

    def _generation(self, exchange: _Exchange, choice: int) -> Generation:
        request = exchange.request
        prompt_ids = exchange.prompt.ids
        sampling = SamplingParams(
            max_tokens=request.max_tokens or self._info.max_context - len(prompt_ids),
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

    async def _choice(self, exchange: _Exchange, choice: int) -> _Choice:
        generation = self._generation(exchange, choice)
        try:
            async with aclosing(sample(self._engine, generation)) as progress:
                async for _ in progress:
                    pass
        except asyncio.CancelledError:
            await self._save_aborted(exchange, generation)
            raise
        return await self._finished(exchange, generation, self._answer(exchange, generation))

    async def _stream(self, exchange: _Exchange) -> AsyncGenerator[dict[str, Any], None]:
        request = exchange.request
        generations = [self._generation(exchange, i) for i in range(request.n)]
        parts = [self._stream_choice(exchange, i, g) for i, g in enumerate(generations)]
        async with aclosing(merged(parts)) as chunks:
            async for chunk in chunks:
                yield chunk
        if request.include_usage:
            last = self._chunk(exchange, [])
            last["usage"] = usage_json(len(exchange.prompt.ids), generations)
            yield last

    async def _stream_choice(
        self, exchange: _Exchange, choice: int, generation: Generation
    ) -> AsyncGenerator[dict[str, Any], None]:
        writer = ChoiceWriter(exchange.request, choice, generation)
        deltas = DeltaStream(generation, exchange.request.tools)
        started = False
        try:
            async with aclosing(sample(self._engine, generation)) as progress:
                async for _ in progress:
                    if not started:
                        started = True
                        first = self._chunk(exchange, [writer.choice({"role": "assistant"})])
                        if exchange.request.return_token_ids:
                            first["prompt_token_ids"] = exchange.prompt.ids
                        yield first
                    delta = deltas.grown()
                    if delta is not None or writer.has_tokens:
                        yield self._chunk(exchange, [writer.choice(delta or {})])
        except (asyncio.CancelledError, GeneratorExit):
            await self._save_aborted(exchange, generation)
            raise
        answer = deltas.given(self._answer(exchange, generation))
        done = await self._finished(exchange, generation, answer)
        for delta in deltas.rest(answer):
            yield self._chunk(exchange, [writer.choice(delta)])
        yield self._chunk(exchange, [writer.choice({}, done.finish_reason)])

    def _chunk(self, exchange: _Exchange, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": exchange.completion_id,
            "object": "chat.completion.chunk",
            "created": int(exchange.created_at),
            "model": self._model_name,
            "choices": choices,
        }
        if exchange.request.include_usage:
            chunk["usage"] = None
        return chunk

    def _answer(self, exchange: _Exchange, generation: Generation) -> Answer:
        tools = exchange.request.tools
        parsed = self._renderer.parse(generation.visible_ids(), exchange.prompt.ids, tools)
        return make_answer(parsed, tools_offered=tools is not None, token_hex=self._token_hex)

    async def _finished(
        self, exchange: _Exchange, generation: Generation, answer: Answer
    ) -> _Choice:
        """Record a choice that is complete; from then on the conversation can go on from it."""
        reason = generation.finish_reason or "abort"
        if reason == "abort":
            await self._save_aborted(exchange, generation)
            raise EngineError(
                f"the engine aborted call {generation.request.request_id}", retry_after=1.0
            )
        metadata = answer_metadata(exchange.prompt, answer.message)
        call = self._call(exchange, generation, reason, metadata)
        await self._save(exchange.record, call)
        exchange.session.index.add(call)
        called = answer.tool_calls and reason == "stop" and not generation.stopped_by_text
        return _Choice(generation, answer, "tool_calls" if called else reason)

    async def _save_aborted(self, exchange: _Exchange, generation: Generation) -> None:
        if generation.sampled_ids:
            await self._save(exchange.record, self._call(exchange, generation, "abort", {}))

    async def _save(self, record: Record, call: Call) -> None:
        # Shielded: tokens that were sampled are recorded even if the client goes away meanwhile.
        saving = asyncio.ensure_future(record(call))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await asyncio.shield(saving)

    def _call(
        self, exchange: _Exchange, generation: Generation, reason: str, metadata: dict[str, str]
    ) -> Call:
        request, session = exchange.request, exchange.session
        return Call(
            call_id=generation.request.request_id,
            episode_id=session.episode_id,
            index=session.take_index(),
            prompt_ids=exchange.prompt.ids,
            sampled_ids=generation.sampled_ids,
            logprobs=generation.logprobs,
            policy_versions=generation.policy_versions,
            temperature=request.temperature,
            finish_reason=reason,
            agent=exchange.agent,
            parent_call_id=exchange.prompt.parent_call_id,
            created_at=exchange.created_at,
            top_p=request.top_p,
            top_k=request.top_k,
            metadata=metadata,
        )
