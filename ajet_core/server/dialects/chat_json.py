"""The JSON of chat completions, as OpenAI writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ajet_core.server.dialects.answer import Answer
from ajet_core.server.dialects.chat_request import ChatRequest
from ajet_core.server.dialects.generation import Generation
from ajet_core.server.dialects.json_text import object_text


def choice_json(
    index: int, request: ChatRequest, generation: Generation, answer: Answer, finish_reason: str
) -> bytes:
    """JSON of a choice of a completion that is not streamed."""
    choice: dict[str, Any] = {
        "index": index,
        "message": answer.to_json(),
        "finish_reason": finish_reason,
    }
    if request.return_token_ids:
        choice["token_ids"] = generation.sampled_ids
    return object_text(choice, logprobs=generation.logprobs_text() if request.logprobs else b"null")


def usage_json(prompt_tokens: int, generations: Sequence[Generation]) -> dict[str, Any]:
    """Tokens used; the prompt counts once, however many choices there are."""
    completion = sum(len(generation.sampled_ids) for generation in generations)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def models_list(model_name: str, created: int) -> dict[str, Any]:
    """The answer of ``GET /v1/models``.

    :param created: unix seconds.
    """
    model = {"id": model_name, "object": "model", "created": created, "owned_by": "agentjet"}
    return {"object": "list", "data": [model]}


@dataclass(slots=True)
class ChoiceWriter:
    """Writes one choice's part of the chunks of a stream.

    Logprobs and token ids go out as the tokens come, even where their text is still held back.
    """

    request: ChatRequest
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
