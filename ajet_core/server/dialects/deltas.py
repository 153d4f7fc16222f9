"""An answer as deltas: text goes out as soon as no later token can change it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ajet_core.server.dialects.answer import Answer, TokenHex, make_answer
from ajet_core.server.dialects.events import NOTHING, CallDelta, Delta
from ajet_core.server.dialects.generation import Generation
from ajet_core.server.dialects.request import ModelRequest
from ajet_core.server.rendering.messages import ToolCall
from ajet_core.server.rendering.renderer import Parsed
from ajet_core.server.rendering.settling import Settling, settled_text

# An answer of n tokens is parsed again after n/64 new ones, so all parses together are linear in n.
_PARSES_PER_DOUBLING = 64

# So many tokens at the end of a prompt tell whether it begins the answer's reasoning.
_PREFILLED = 16


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
        settling = generation.renderer.settling
        raw = self.request.prompt is not None
        if generation.finish_reason is not None or (settling is None and not raw):
            return NOTHING
        tokens = len(generation.sampled_ids)
        if tokens - self._parsed_tokens < max(1, tokens // _PARSES_PER_DOUBLING):
            return NOTHING
        self._parsed_tokens = tokens
        if raw or settling is None:
            text = generation.renderer.decode(generation.text_ids())
            return Delta(content=self._new_content(settled_text(text)))
        parsed = generation.renderer.parse(
            generation.visible_ids(), generation.request.prompt_ids, self.request.tools
        )
        reasoning, more = settling.part(parsed.reasoning), ""
        if len(reasoning) > len(self._reasoning) and reasoning.startswith(self._reasoning):
            more = reasoning[len(self._reasoning) :]
            self._reasoning = reasoning
        return Delta(
            more,
            self._new_content(settling.part(parsed.content)),
            self._new_calls(settling, parsed),
        )

    def _new_calls(self, settling: Settling, parsed: Parsed) -> tuple[CallDelta, ...]:
        """Calls that are written to their end; the next token belongs to something else."""
        if self.request.tools is None or parsed.malformed or len(parsed.calls) <= len(self._calls):
            return ()
        if not settling.calls or self._may_be_reasoning():
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

    def _may_be_reasoning(self) -> bool:
        """Whether a call ended the reasoning: if that is closed in so many words later, the call was part of it."""
        generation, decode = self.generation, self.generation.renderer.decode
        text = decode(generation.visible_ids())
        begun = decode(generation.request.prompt_ids[-_PREFILLED:]) + text
        return "<think>" in begun and "</think>" not in text

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
