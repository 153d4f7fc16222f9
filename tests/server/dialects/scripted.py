"""An engine that says what it is told to, and shorthands around a chat service."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ajet_core.errors import EngineError
from ajet_core.interfaces.engine import (
    EngineCapabilities,
    EngineInfo,
    GenerateChunk,
    GenerateRequest,
)
from ajet_core.timeline import Call
from ajet_server.gateway.formats.chat import ChatRequest, read_chat_request
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.gateway.rendering.conversation import ConversationIndex, Record
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_testing.tokenizers import renderer_for

MOVE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "move",
        "parameters": {"type": "object", "properties": {"direction": {"type": "string"}}},
    },
}
ABLE = EngineCapabilities(("x",), max_top_logprobs=5, seed=True)
CALL_TEXT = '<tool_call>\n{"name": "move", "arguments": {"direction": "up"}}\n</tool_call>'
KEPT = struct.pack("<2I", 0, 900)
USER = {"role": "user", "content": "Where is the goal?"}


@dataclass
class ScriptedEngine:
    """Answers each request with the next script, `per_chunk` tokens at a time.

    :ivar fair: lets others run after every chunk.
    :ivar fails_at: raises before the token at this position.
    :ivar hold: waits for this before the token at position `hold_at`.
    :ivar closed: ids of requests whose generator was closed or came to its end.
    """

    scripts: list[list[int]]
    per_chunk: int = 1
    finish: str = "stop"
    top: bool = False
    fair: bool = False
    fails_at: int | None = None
    hold: asyncio.Event | None = None
    hold_at: int = 0
    requests: list[GenerateRequest] = field(default_factory=list)
    produced: int = 0
    closed: list[str] = field(default_factory=list)
    held: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(replace(request, prompt_ids=list(request.prompt_ids)))
        try:
            for start in range(0, len(script), self.per_chunk):
                if start == self.fails_at:
                    raise EngineError("scripted failure")
                if self.hold is not None and start >= self.hold_at:
                    self.held.set()
                    await self.hold.wait()
                if self.fair:
                    await asyncio.sleep(0)
                ids = script[start : start + self.per_chunk]
                self.produced += len(ids)
                last = start + self.per_chunk >= len(script)
                yield GenerateChunk(
                    token_ids=ids,
                    logprobs=[-0.5 - start - i for i in range(len(ids))],
                    policy_version=7,
                    finish_reason=self.finish if last else None,  # type: ignore[arg-type]
                    top_logprobs=[[(i, -0.5), (0, float("-inf"))] for i in ids]
                    if self.top
                    else None,
                    sampled_from=[(-0.25 - start - i, KEPT) for i in range(len(ids))]
                    if request.sampling.sampled_from
                    else None,
                )
        finally:
            self.closed.append(request.request_id)


def counting_hex(start: int = 0) -> Callable[[int], str]:
    """A source of ids that is the same in every service."""
    numbers: Iterator[int] = iter(range(start, 1 << 20))
    return lambda size: f"{next(numbers):0{2 * size}x}"


class ChatService:
    """Chat completions as JSON, as the route makes them."""

    def __init__(self, *settings: Any, **more: Any) -> None:
        self.completions = CompletionService(*settings, **more)

    async def complete(
        self, session: Session, request: ModelRequest, record: Record, agent: str = ""
    ) -> bytes:
        exchange = await self.completions.begin(session, request, record, agent)
        return ChatRequest(request).whole(exchange, await self.completions.complete(exchange))

    async def stream(
        self, session: Session, request: ModelRequest, record: Record, agent: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """JSON of chunks."""
        exchange = await self.completions.begin(session, request, record, agent)
        async with aclosing(self.completions.events(exchange)) as events:
            writer = ChatRequest(request).writer(exchange)
            async for happened in events:
                for chunk in writer.write(happened):
                    yield chunk.removeprefix(b"data: ")
        for chunk in writer.end():
            if chunk != b"data: [DONE]\n\n":
                yield chunk.removeprefix(b"data: ")


@dataclass
class Gateway:
    """A chat service with one episode, whose calls are kept in a list."""

    engine: ScriptedEngine
    renderer: ChatRenderer
    session: Session = field(default_factory=lambda: Session("ep", ConversationIndex()))
    calls: list[Call] = field(default_factory=list)
    max_context: int = 4096
    capabilities: EngineCapabilities = ABLE
    first_id: int = 0
    requests: list[tuple[Any, Any]] = field(default_factory=list)
    request: ModelRequest | None = None

    def __post_init__(self) -> None:
        self.service = ChatService(
            self.renderer,
            self.engine,
            "tiny",
            EngineInfo(self.max_context, 1000),
            self.capabilities,
            clock=lambda: 1700000000.5,
            token_hex=counting_hex(self.first_id),
        )

    async def record(self, call: Call) -> None:
        self.calls.append(call)

    async def complete(self, *messages: dict[str, Any], **settings: Any) -> ChatCompletion:
        """A completion, validated by the official SDK after a way through JSON."""
        request = read_chat_request(body(*messages, **settings))
        self.requests.append((request.messages, request.tools))
        self.request = request
        text = await self.service.complete(self.session, request, self.record, agent="a")
        return ChatCompletion.model_validate_json(text)

    async def chunks(self, *messages: dict[str, Any], **settings: Any) -> list[ChatCompletionChunk]:
        """All chunks of a stream, validated likewise."""
        request = read_chat_request(body(*messages, **settings, stream=True))
        stream = self.service.stream(self.session, request, self.record)
        return [ChatCompletionChunk.model_validate_json(chunk) async for chunk in stream]


def gateway(text: str | list[str], name: str = "qwen3", **engine: Any) -> Gateway:
    """A gateway whose model says `text` (or these texts, one per call)."""
    renderer = renderer_for(name)
    texts = [text] if isinstance(text, str) else text
    return Gateway(ScriptedEngine([renderer.encode(t) for t in texts], **engine), renderer)


def body(*messages: dict[str, Any], **settings: Any) -> bytes:
    """A request body."""
    return json.dumps({"model": "m", "messages": list(messages), **settings}).encode()


def assembled(chunks: list[ChatCompletionChunk], choice: int = 0) -> dict[str, Any]:
    """The message that a client puts together from a stream's deltas."""
    message: dict[str, Any] = {"content": None, "reasoning": None, "tool_calls": []}
    for chunk in chunks:
        for part in chunk.choices:
            if part.index != choice:
                continue
            if part.delta.content is not None:
                message["content"] = (message["content"] or "") + part.delta.content
            if (reasoning := getattr(part.delta, "reasoning_content", None)) is not None:
                message["reasoning"] = (message["reasoning"] or "") + reasoning
            for call in part.delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(message["tool_calls"])
                    message["tool_calls"].append([call.id, call.function.name, ""])
                message["tool_calls"][call.index][2] += call.function.arguments
    return message


def message_of(completion: ChatCompletion, choice: int = 0) -> dict[str, Any]:
    """The same form of a message that was not streamed."""
    message = completion.choices[choice].message
    return {
        "content": message.content,
        "reasoning": getattr(message, "reasoning_content", None),
        "tool_calls": [
            [call.id, call.function.name, call.function.arguments]
            for call in message.tool_calls or []
        ],
    }
