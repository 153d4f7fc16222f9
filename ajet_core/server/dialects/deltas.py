"""An answer as deltas: text goes out as soon as no later token can change it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ajet_core.server.dialects.answer import Answer, TokenHex, make_answer
from ajet_core.server.dialects.events import NOTHING, CallDelta, Delta
from ajet_core.server.dialects.generation import Generation
from ajet_core.server.dialects.request import ModelRequest
from ajet_core.server.rendering.messages import ToolCall
from ajet_core.server.rendering.renderer import Parsed

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
    """Turns a growing generation into deltas whose sum is the finished message."""

    generation: Generation
    request: ModelRequest
    token_hex: TokenHex
    _content: str = ""
    _reasoning: str = ""
    _calls: list[ToolCall] = field(default_factory=list)
    _parsed_tokens: int = 0

    def grown(self) -> Delta:
        """What is certain by now and was not before."""
        generation = self.generation
        if not generation.renderer.incremental or generation.finish_reason is not None:
            return NOTHING
        tokens = len(generation.sampled_ids)
        if tokens - self._parsed_tokens < max(1, tokens // _PARSES_PER_DOUBLING):
            return NOTHING
        self._parsed_tokens = tokens
        if self.request.prompt is not None:
            text = generation.renderer.decode(generation.text_ids())
            return Delta(content=self._new_content(text.rstrip(_UNSETTLED)))
        parsed = generation.renderer.parse(
            generation.visible_ids(), generation.request.prompt_ids, self.request.tools
        )
        reasoning, more = _settled(parsed.reasoning), ""
        if len(reasoning) > len(self._reasoning) and reasoning.startswith(self._reasoning):
            more = reasoning[len(self._reasoning) :]
            self._reasoning = reasoning
        return Delta(more, self._new_content(_settled(parsed.content)), self._new_calls(parsed))

    def _new_calls(self, parsed: Parsed) -> tuple[CallDelta, ...]:
        """Calls that are written to their end; the next token belongs to something else."""
        if self.request.tools is None or parsed.malformed or len(parsed.calls) <= len(self._calls):
            return ()
        known = len(self._calls)
        answer = make_answer(
            replace(parsed, calls=parsed.calls[known:]),
            tools_offered=True,
            token_hex=self.token_hex,
        )
        taken = {call.id for call in self._calls}
        if len(answer.tool_calls) < len(parsed.calls) - known or any(
            call.id in taken for call in answer.tool_calls
        ):
            # Some of them are no calls after all; what becomes of them is seen at the end.
            return ()
        self._calls += answer.tool_calls
        return tuple(_whole(index, call) for index, call in enumerate(self._calls))[known:]

    def _new_content(self, content: str) -> str:
        if len(content) <= len(self._content) or not content.startswith(self._content):
            return ""
        more = content[len(self._content) :]
        self._content = content
        return more

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
        calls = (*self._calls, *answer.tool_calls[len(self._calls) :])
        return Answer(content, reasoning, calls)

    def rest(self, answer: Answer) -> Delta:
        """What completes what was sent to `answer`, which `given` returned."""
        calls = [_whole(index, call) for index, call in enumerate(answer.tool_calls)]
        return Delta(
            answer.reasoning[len(self._reasoning) :],
            answer.content[len(self._content) :],
            tuple(calls[len(self._calls) :]),
        )


def _whole(index: int, call: ToolCall) -> CallDelta:
    return CallDelta(index, call.id, call.name, call.arguments)


def _settled(text: str) -> str:
    """The part of `text` that further tokens can only add to."""
    if text.startswith(_HEADERS):
        return ""
    kept = text.rstrip(_UNSETTLED)
    at = kept.rfind("<")
    if at >= 0 and any(marker.startswith(kept[at:]) for marker in _MARKERS):
        kept = kept[:at]
    return kept.rstrip()
