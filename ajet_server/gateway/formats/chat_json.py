"""The JSON of chat completions, as OpenAI writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ajet_server.gateway.formats.events import Choice, Delta
from ajet_server.gateway.formats.exchange import Exchange
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.formats.json_text import object_text
from ajet_server.gateway.formats.request import ModelRequest


def choice_json(request: ModelRequest, choice: Choice) -> bytes:
    """JSON of a choice of a completion that is not streamed."""
    generation = choice.generation
    plain: dict[str, Any] = {
        "index": choice.choice,
        "message": choice.answer.to_json(),
        "finish_reason": choice.finish_reason,
    }
    if request.return_token_ids:
        plain["token_ids"] = generation.sampled_ids
    return object_text(plain, logprobs=generation.logprobs_text() if request.logprobs else b"null")


def delta_json(delta: Delta) -> dict[str, Any]:
    """A delta of text."""
    plain = {"reasoning_content": delta.reasoning, "content": delta.content}
    return {name: text for name, text in plain.items() if text}


def rest_json(rest: Delta, *, empty: bool) -> list[dict[str, Any]]:
    """The deltas that complete an answer.

    :param empty: there is nothing in the answer but perhaps reasoning.
    """
    deltas: list[dict[str, Any]] = []
    if rest.reasoning:
        deltas.append({"reasoning_content": rest.reasoning})
    if rest.content or empty:
        deltas.append({"content": rest.content})
    for call in rest.calls:
        filled = {"index": call.index, "function": {"arguments": call.arguments}}
        if call.id is None:
            deltas.append({"tool_calls": [filled]})
            continue
        function = {"name": call.name, "arguments": ""}
        opened = {"index": call.index, "id": call.id, "type": "function", "function": function}
        deltas += ({"tool_calls": [opened]}, {"tool_calls": [filled]})
    return deltas


def usage_json(exchange: Exchange, generations: Sequence[Generation]) -> dict[str, Any]:
    """Tokens used; the prompt counts once, however many choices there are."""
    prompt = len(exchange.prompt.ids)
    completion = sum(len(generation.sampled_ids) for generation in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@dataclass(slots=True)
class ChoiceWriter:
    """Writes one choice's part of the chunks of a stream.

    Logprobs and token ids go out as the tokens come, even where their text is still held back.
    """

    request: ModelRequest
    index: int
    generation: Generation
    _written: int = 0

    @property
    def has_tokens(self) -> bool:
        """Whether a chunk is due for the sake of its tokens."""
        wanted = self.request.logprobs or self.request.return_token_ids
        return wanted and len(self.generation.sampled_ids) > self._written

    def choice(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        """JSON of the choice of the next chunk, with the tokens that came since the last one."""
        start, self._written = self._written, len(self.generation.sampled_ids)
        fresh = self._written > start
        choice: dict[str, Any] = {
            "index": self.index,
            "delta": delta,
            "finish_reason": finish_reason,
        }
        if self.request.return_token_ids:
            choice["token_ids"] = self.generation.sampled_ids[start:]
        wanted = self.request.logprobs and fresh
        return object_text(
            choice, logprobs=self.generation.logprobs_text(start) if wanted else b"null"
        )
