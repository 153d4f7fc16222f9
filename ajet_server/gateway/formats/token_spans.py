"""Which of the sampled tokens an answer's text and its reasoning stand in: where its parser begins and ceases to see them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic_core

from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.rendering.messages import ToolSpec
from ajet_server.gateway.rendering.parsing import Parsed


@dataclass(slots=True)
class Spans:
    """Finds the tokens of an answer's parts. Each question parses the answer some log2(tokens) times.

    :param tools: that were offered.
    """

    generation: Generation
    tools: Sequence[ToolSpec] | None
    _end: int | None = None

    def more_text(self, text: str) -> list[dict[str, Any]]:
        """OpenAI's entries of logprobs for the tokens of the answer's text that were not listed before.

        :param text: all of the text so far. Tokens of which it has a part are its tokens, and so are those between
            its parts.
        """
        if not text:
            return []
        sampled = self._sampled()
        start = self._start(sampled) if self._end is None else self._end

        def has_all(length: int) -> bool:
            return self._parsed(length).content.startswith(text)

        # Calls that are none stand in the text as well, but no parser gives them out as text.
        end = self._first(has_all, start, sampled) if has_all(sampled) else sampled
        self._end = max(start, end)
        listed = pydantic_core.from_json(self.generation.logprobs_text(start))["content"]
        entries: list[dict[str, Any]] = listed[: self._end - start]
        return entries

    def reasoning(self) -> int:
        """Tokens of the reasoning, the tags that were sampled with it included; 0 if that is not to be told."""
        sampled = self._sampled()
        whole = self._parsed(sampled)
        if not whole.reasoning or whole.open:
            return sampled if whole.reasoning else 0

        def is_complete(length: int) -> bool:
            parsed = self._parsed(length)
            return not parsed.open and parsed.reasoning == whole.reasoning

        end = self._first(is_complete, 0, sampled)
        # Reasoning that goes on behind some text is not counted.
        return 0 if self._parsed(end).content else end

    def _start(self, sampled: int) -> int:
        """The token in which the text begins."""
        if not self._parsed(sampled).content:
            return self.reasoning()
        return self._first(lambda length: bool(self._parsed(length).content), 0, sampled) - 1

    def _first(self, holds: Callable[[int], bool], low: int, high: int) -> int:
        """The least number of tokens of which something holds that holds of `high` and of all in between."""
        return low + bisect_left(range(low, high), x=True, key=holds)

    def _sampled(self) -> int:
        """Tokens that were sampled, but for the one that ended the answer."""
        ids = self.generation.sampled_ids
        ended = bool(ids) and ids[-1] in self.generation.request.sampling.stop_token_ids
        return len(ids) - ended

    def _parsed(self, length: int) -> Parsed:
        generation = self.generation
        ids = generation.sampled_ids[:length]
        return generation.renderer.parse(ids, generation.request.prompt_ids, self.tools)
