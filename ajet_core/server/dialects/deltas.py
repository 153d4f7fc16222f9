"""An answer as deltas: text goes out as soon as no later token can change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ajet_core.server.dialects.answer import Answer
from ajet_core.server.dialects.generation import Generation
from ajet_core.server.rendering.messages import ToolSpec

# An answer of n tokens is parsed again after n/64 new ones, so all parses together are linear in n.
_PARSES_PER_DOUBLING = 64

# Texts that are no text of the answer once they are complete: where the tokenizer has no token for
# one, its beginning looks like text.
_MARKERS = ("<think>", "</think>")
# An answer that begins with the turn's header again is looked at only when it is complete.
_HEADERS = ("<|im_start|>",)
# The characters that str.strip takes off an answer's end, and what an incomplete character decodes to.
_UNSETTLED = "\ufffd"


@dataclass(slots=True)
class DeltaStream:
    """Turns a growing generation into deltas whose sum is the finished message.

    :param tools: as offered to the model.
    """

    generation: Generation
    tools: tuple[ToolSpec, ...] | None
    _content: str = ""
    _reasoning: str = ""
    _parsed_tokens: int = 0

    def grown(self) -> dict[str, Any] | None:
        """The delta for what is certain by now, None if nothing new is."""
        generation = self.generation
        if not generation.renderer.incremental or generation.finish_reason is not None:
            return None
        tokens = len(generation.sampled_ids)
        if tokens - self._parsed_tokens < max(1, tokens // _PARSES_PER_DOUBLING):
            return None
        self._parsed_tokens = tokens
        parsed = generation.renderer.parse(
            generation.visible_ids(), generation.request.prompt_ids, self.tools
        )
        delta: dict[str, Any] = {}
        reasoning, content = _settled(parsed.reasoning), _settled(parsed.content)
        if len(reasoning) > len(self._reasoning) and reasoning.startswith(self._reasoning):
            delta["reasoning_content"] = reasoning[len(self._reasoning) :]
            self._reasoning = reasoning
        if len(content) > len(self._content) and content.startswith(self._content):
            delta["content"] = content[len(self._content) :]
            self._content = content
        return delta or None

    def given(self, answer: Answer) -> Answer:
        """The answer that the client has when `rest` is sent too.

        It is `answer`, unless a parser took back text that was sent: then the client's version counts,
        because that is what comes back with the next request.
        """
        content, reasoning = answer.content, answer.reasoning
        if not content.startswith(self._content):
            content = self._content
        if not reasoning.startswith(self._reasoning):
            reasoning = self._reasoning
        return Answer(content, reasoning, answer.tool_calls)

    def rest(self, answer: Answer) -> list[dict[str, Any]]:
        """The deltas that complete what was sent to `answer`, which `given` returned."""
        deltas: list[dict[str, Any]] = []
        if reasoning := answer.reasoning[len(self._reasoning) :]:
            deltas.append({"reasoning_content": reasoning})
        content = answer.content[len(self._content) :]
        if content or not (answer.content or answer.tool_calls):
            deltas.append({"content": content})
        for index, call in enumerate(answer.tool_calls):
            function = {"name": call.name, "arguments": ""}
            opened = {"index": index, "id": call.id, "type": "function", "function": function}
            filled = {"index": index, "function": {"arguments": call.arguments}}
            deltas += ({"tool_calls": [opened]}, {"tool_calls": [filled]})
        return deltas


def _settled(text: str) -> str:
    """The part of `text` that further tokens can only add to."""
    if text.startswith(_HEADERS):
        return ""
    kept = text.rstrip(_UNSETTLED)
    at = kept.rfind("<")
    if at >= 0 and any(marker.startswith(kept[at:]) for marker in _MARKERS):
        kept = kept[:at]
    return kept.rstrip()
