"""Turn an answer into deltas: text is sent as soon as no later token can change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ajet_server.gateway.formats.answer import Answer, TokenHex, make_answer
from ajet_server.gateway.formats.events import NOTHING, CallDelta, Delta
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.gateway.rendering.begun_calls import BegunCall, begun_call
from ajet_server.gateway.rendering.messages import ToolCall
from ajet_server.gateway.rendering.parsing import Parsed
from ajet_server.gateway.rendering.stable_prefix import StablePrefix, stable_text

# An answer of n tokens is parsed again after n/64 new tokens, so the total cost is linear in n.
_PARSES_PER_DOUBLING = 64

# This many tokens at the end of a prompt show whether it opens the answer's reasoning.
_PREFILLED = 16


@dataclass(slots=True)
class DeltaStream:
    """Turns a growing generation into deltas that add up to the finished message."""

    generation: Generation
    request: ModelRequest
    token_hex: TokenHex
    _content: str = ""
    _reasoning: str = ""
    _calls: list[ToolCall] = field(default_factory=list)
    _begun: ToolCall | None = None  # the call in progress, with its arguments as far as sent
    _torn: bool = False  # whether the call in progress turned out to be something else
    _parsed_tokens: int = 0

    def grown(self) -> Delta:
        """Return what has become certain since the last call."""
        generation = self.generation
        stable_prefix = generation.renderer.stable_prefix
        raw = self.request.prompt is not None
        if generation.finish_reason is not None or (stable_prefix is None and not raw):
            return NOTHING
        tokens = len(generation.sampled_ids)
        if tokens - self._parsed_tokens < max(1, tokens // _PARSES_PER_DOUBLING):
            return NOTHING
        self._parsed_tokens = tokens
        if raw or stable_prefix is None:
            text = generation.renderer.decode(generation.text_ids())
            return Delta(content=self._new_content(stable_text(text)))
        parsed = generation.renderer.parse(
            generation.visible_ids(), generation.request.prompt_ids, self.request.callable_tools
        )
        reasoning, more = stable_prefix.part(parsed.reasoning), ""
        if len(reasoning) > len(self._reasoning) and reasoning.startswith(self._reasoning):
            more = reasoning[len(self._reasoning) :]
            self._reasoning = reasoning
        return Delta(
            more,
            self._new_content(stable_prefix.part(parsed.content)),
            self._new_calls(stable_prefix, parsed),
        )

    def _new_calls(self, stable_prefix: StablePrefix, parsed: Parsed) -> tuple[CallDelta, ...]:
        """Return newly complete calls, and more of the arguments of a call in progress.

        A call is complete when the next token belongs to something else.
        """
        if self.request.callable_tools is None or not stable_prefix.calls or self._torn:
            return ()
        if (
            not (parsed.malformed or len(parsed.calls) > len(self._calls))
            or self._may_be_reasoning()
        ):
            return ()
        begun: BegunCall | None = None
        if parsed.malformed and self.request.whole_calls:
            return ()
        if parsed.malformed:
            generation = self.generation
            begun = begun_call(
                generation.renderer,
                generation.visible_ids(),
                generation.request.prompt_ids,
                self.request.callable_tools,
                parsed,
            )
            if begun is None:
                return ()
        deltas = self._whole_calls(parsed)
        return deltas if begun is None or self._torn else (*deltas, *self._more_of(begun))

    def _whole_calls(self, parsed: Parsed) -> tuple[CallDelta, ...]:
        known = len(self._calls)
        if len(parsed.calls) <= known:
            return ()
        answer = make_answer(
            replace(parsed, calls=parsed.calls[known:]),
            tools_offered=True,
            token_hex=self.token_hex,
        )
        taken = {call.id for call in self._calls}
        if len(answer.tool_calls) < len(parsed.calls) - known or any(
            call.id in taken for call in answer.tool_calls
        ):
            # Some of them are malformed; wait for the end of the answer.
            return ()
        calls = list(answer.tool_calls)
        begun = self._begun
        if begun is not None:
            if not _completes(calls[0], begun):
                self._torn = True
                return ()
            calls[0] = replace(calls[0], id=begun.id)
        self._calls += calls
        self._begun = None
        return _deltas(known, calls, begun)

    def _more_of(self, begun: BegunCall) -> tuple[CallDelta, ...]:
        """Return what is new in the arguments of the call in progress."""
        index, before = len(self._calls), self._begun
        if before is None:
            self._begun = ToolCall(f"call_{self.token_hex(12)}", begun.name, begun.arguments)
            return (CallDelta(index, self._begun.id, begun.name, begun.arguments),)
        if begun.name != before.name or not begun.arguments.startswith(before.arguments):
            # It has become something else; wait for the end of the answer.
            self._torn = True
            return ()
        more = begun.arguments[len(before.arguments) :]
        self._begun = replace(before, arguments=begun.arguments)
        return (CallDelta(index, arguments=more),) if more else ()

    def _may_be_reasoning(self) -> bool:
        """Whether a call may be part of reasoning that has not been closed yet.

        A call ends the reasoning; if a closing tag follows later, the call was part of it.
        """
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

    def given(self, parsed: Parsed) -> Answer:
        """Return the answer that the client has once `rest` is sent too.

        It is the parsed answer, unless the parser retracted something that was sent: then the
        client's version counts, because the next request sends that back. A call that was started
        but not completed stays a call, with its arguments as far as they were sent.
        """
        begun, known = self._begun, len(self._calls)
        answer = self._answer(parsed)
        malformed = answer.malformed
        calls = list(answer.tool_calls[known:])
        if begun is not None and calls and _completes(calls[0], begun):
            calls[0] = replace(calls[0], id=begun.id)
        elif begun is not None:
            # The malformed call must not be shown as text as well.
            answer = self._answer(replace(parsed, malformed=parsed.malformed[1:]))
            calls = [begun, *answer.tool_calls[known:]]
        content, reasoning = answer.content, answer.reasoning
        if not content.startswith(self._content):
            content = self._content
        if not reasoning.startswith(self._reasoning):
            reasoning = self._reasoning
        return Answer(content, reasoning, (*self._calls, *calls), malformed)

    def completed(self, answer: Answer) -> Delta:
        """Return the end of the call in progress; it precedes everything else left of `answer`."""
        begun, known = self._begun, len(self._calls)
        if begun is None:
            return NOTHING
        call = answer.tool_calls[known]
        self._calls.append(call)
        self._begun = None
        return Delta(calls=_deltas(known, [call], begun))

    def rest(self, answer: Answer) -> Delta:
        """Return the part of `answer` that was not sent yet; `given` returned `answer`."""
        known = len(self._calls)
        return Delta(
            answer.reasoning[len(self._reasoning) :],
            answer.content[len(self._content) :],
            _deltas(known, answer.tool_calls[known:]),
        )

    def _answer(self, parsed: Parsed) -> Answer:
        return make_answer(
            parsed, tools_offered=self.request.callable_tools is not None, token_hex=self.token_hex
        )


def _completes(call: ToolCall, begun: ToolCall) -> bool:
    """Whether a complete call is the call in progress."""
    return call.name == begun.name and call.arguments.startswith(begun.arguments)


def _deltas(
    first: int, calls: Sequence[ToolCall], begun: ToolCall | None = None
) -> tuple[CallDelta, ...]:
    """Return deltas for complete calls; the first may have been sent already as far as `begun`."""
    deltas = [CallDelta(i, c.id, c.name, c.arguments) for i, c in enumerate(calls, start=first)]
    if begun is not None:
        more = calls[0].arguments[len(begun.arguments) :]
        deltas[:1] = [CallDelta(first, arguments=more)] if more else []
    return tuple(deltas)
