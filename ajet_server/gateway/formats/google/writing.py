"""Write the answers of ``generateContent``, whole and as streams."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet_server.gateway.formats.answer import Spans
from ajet_server.gateway.formats.bodies import object_text
from ajet_server.gateway.formats.dialect import DialectRequest, StreamWriter, event
from ajet_server.gateway.formats.events import Choice, ChoiceDelta, Delta, Event, Started
from ajet_server.gateway.formats.exchange import Exchange
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.rendering.messages import ToolCall

_REASONS = {"length": "MAX_TOKENS"}
_EMPTY: dict[str, Any] = {"text": ""}
# The SDKs take lines of comments for JSON, and chunks without content for failures.
HEARTBEAT = event(
    object_text({"candidates": [{"content": {"role": "model", "parts": [_EMPTY]}, "index": 0}]})
)
ARRAY_HEARTBEAT = b"\n"


@dataclass(frozen=True, slots=True)
class GenerateContentRequest(DialectRequest):
    """A request for content.

    :param with_thoughts: whether the answer has the model's thoughts.
    :param is_array: whether a stream is a JSON array instead of server-sent events.
    """

    with_thoughts: bool
    is_array: bool = False

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """Return a ``GenerateContentResponse``."""
        candidates = []
        for choice in choices:
            answer = choice.answer
            delta = Delta(answer.reasoning if self.with_thoughts else "", answer.content)
            parts = [*_texts(delta), *map(_call, answer.tool_calls)]
            candidate = _candidate(choice.choice, parts or [_EMPTY])
            candidate |= _end(choice)
            if exchange.request.logprobs:
                candidate["logprobsResult"] = choice.generation.listed_logprobs()
            candidates.append(candidate)
        usage = _usage(exchange, [choice.generation for choice in choices])
        return object_text(_response(exchange, candidates) | usage)

    def writer(self, exchange: Exchange) -> ContentWriter:
        """Return a writer of ``GenerateContentResponse`` chunks."""
        return ContentWriter(exchange, self.with_thoughts, self.is_array)


@dataclass(slots=True)
class ContentWriter(StreamWriter):
    """Writes the chunks of one answer; each has new parts of one candidate."""

    exchange: Exchange
    with_thoughts: bool
    is_array: bool
    _generations: dict[int, Generation] = field(default_factory=dict)
    _listed: dict[int, int] = field(default_factory=dict)
    _is_begun: bool = False

    def write(self, happened: Event) -> Iterator[bytes]:
        """Yield a chunk for each event that has new parts, and for the end of each candidate."""
        match happened:
            case Started(choice, generation):
                self._generations[choice] = generation
            case ChoiceDelta(choice, delta):
                if parts := self._parts(delta):
                    yield self._chunk(_candidate(choice, parts) | self._logprobs(choice))
            case Choice(choice, _, _, _, rest):
                candidate = _candidate(choice, self._parts(rest) or [_EMPTY]) | _end(happened)
                candidate |= self._logprobs(choice)
                yield self._chunk(candidate, **_usage(self.exchange, self._generations.values()))

    def heartbeat(self) -> Iterator[bytes]:
        """Yield a chunk with an empty text, or white space within an array."""
        yield ARRAY_HEARTBEAT if self.is_array else HEARTBEAT

    def end(self) -> Iterator[bytes]:
        """Yield the end of the array."""
        if self.is_array:
            yield b"]"

    def _logprobs(self, choice: int) -> dict[str, Any]:
        """Return the logprobs of a candidate's tokens since its last chunk, if requested."""
        if not self.exchange.request.logprobs:
            return {}
        generation = self._generations[choice]
        start = self._listed.get(choice, 0)
        self._listed[choice] = len(generation.sampled_ids)
        return {"logprobsResult": generation.listed_logprobs(start)}

    def _parts(self, delta: Delta) -> list[dict[str, Any]]:
        shown = delta if self.with_thoughts else Delta(content=delta.content)
        calls = (ToolCall(c.id or "", c.name or "", c.arguments) for c in delta.calls)
        return [*_texts(shown), *map(_call, calls)]

    def _chunk(self, candidate: dict[str, Any], **more: Any) -> bytes:
        chunk = object_text(_response(self.exchange, [candidate]) | more)
        if not self.is_array:
            return event(chunk)
        before, self._is_begun = b",\n" if self._is_begun else b"[", True
        return before + chunk


def _texts(delta: Delta) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if delta.reasoning:
        parts.append({"text": delta.reasoning, "thought": True})
    if delta.content:
        parts.append({"text": delta.content})
    return parts


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.loads(call.arguments)
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}


def _candidate(index: int, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"content": {"role": "model", "parts": parts}, "index": index}


def _end(choice: Choice) -> dict[str, Any]:
    """Return the fields of a complete candidate."""
    logprobs = choice.generation.logprobs
    fields: dict[str, Any] = {"finishReason": _REASONS.get(choice.finish_reason, "STOP")}
    if logprobs:
        fields["avgLogprobs"] = sum(logprobs) / len(logprobs)
    return fields


def _response(exchange: Exchange, candidates: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "candidates": candidates,
        "modelVersion": exchange.model_name,
        "responseId": exchange.completion_id,
    }


def _usage(exchange: Exchange, generations: Collection[Generation]) -> dict[str, Any]:
    """Return the tokens used; the prompt counts once, whatever the number of candidates."""
    prompt = len(exchange.prompt.ids)
    sampled = sum(len(one.sampled_ids) for one in generations)
    thoughts = sum(Spans(one, exchange.request.callable_tools).reasoning() for one in generations)
    usage = {"promptTokenCount": prompt, "candidatesTokenCount": sampled - thoughts}
    if thoughts:
        usage["thoughtsTokenCount"] = thoughts
    return {"usageMetadata": {**usage, "totalTokenCount": prompt + sampled}}
