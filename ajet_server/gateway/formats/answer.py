"""Make the client's assistant message from parsed text, and find the tokens of its parts."""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic_core

from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall, ToolSpec, as_json
from ajet_server.gateway.rendering.parsing import Parsed, ParsedCall


@dataclass(slots=True)
class Spans:
    """Finds the tokens of an answer's parts. Each query parses the answer about log2(tokens) times.

    :param tools: the tools that were offered.
    """

    generation: Generation
    tools: Sequence[ToolSpec] | None
    _end: int | None = None

    def more_text(self, text: str) -> list[dict[str, Any]]:
        """Return OpenAI's logprob entries for the tokens of the text that were not listed before.

        :param text: all of the text so far. Its tokens are those that have a part in it, and those
            between its parts.
        """
        if not text:
            return []
        sampled = self._sampled()
        start = self._start(sampled) if self._end is None else self._end

        def has_all(length: int) -> bool:
            return self._parsed(length).content.startswith(text)

        # The answer's text also has malformed calls, which no parser returns as text.
        end = self._first(has_all, start, sampled) if has_all(sampled) else sampled
        self._end = max(start, end)
        listed = pydantic_core.from_json(self.generation.logprobs_text(start))["content"]
        entries: list[dict[str, Any]] = listed[: self._end - start]
        return entries

    def reasoning(self) -> int:
        """Return the number of tokens of the reasoning, with its sampled tags; 0 if unknown."""
        sampled = self._sampled()
        whole = self._parsed(sampled)
        if not whole.reasoning or whole.open:
            return sampled if whole.reasoning else 0

        def is_complete(length: int) -> bool:
            parsed = self._parsed(length)
            return not parsed.open and parsed.reasoning == whole.reasoning

        end = self._first(is_complete, 0, sampled)
        # Reasoning that continues after some text is not counted.
        return 0 if self._parsed(end).content else end

    def _start(self, sampled: int) -> int:
        """Return the index of the token in which the text begins."""
        if not self._parsed(sampled).content:
            return self.reasoning()
        return self._first(lambda length: bool(self._parsed(length).content), 0, sampled) - 1

    def _first(self, holds: Callable[[int], bool], low: int, high: int) -> int:
        """Return the least number of tokens for which `holds` is true.

        It must be true for `high`, and for every number above the least one.
        """
        return low + bisect_left(range(low, high), x=True, key=holds)

    def _sampled(self) -> int:
        """Return the number of sampled tokens, without the one that ended the answer."""
        ids = self.generation.sampled_ids
        ended = bool(ids) and ids[-1] in self.generation.request.sampling.stop_token_ids
        return len(ids) - ended

    def _parsed(self, length: int) -> Parsed:
        generation = self.generation
        ids = generation.sampled_ids[:length]
        return generation.renderer.parse(ids, generation.request.prompt_ids, self.tools)


TokenHex = Callable[[int], str]
"""Returns random hex text of a number of bytes, as `secrets.token_hex`."""


def random_hex(size: int) -> str:
    """Return hex text of `size` random bytes, for ids only: the bytes are predictable."""
    # Seeded by the operating system once, and again in a forked process. A system call for every id
    # would be slower.
    return random.randbytes(size).hex()  # noqa: S311 - for names, not for secrets


@dataclass(frozen=True, slots=True)
class Answer:
    """An assistant message.

    :param content: text of the answer, "" if there is only reasoning or tool calls.
    :param malformed: number of malformed tool calls, which are shown in `content` instead.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: int = 0

    @property
    def message(self) -> ChatMessage:
        """The message as a part of the conversation."""
        return ChatMessage(
            "assistant", self.content, self.tool_calls, reasoning=self.reasoning or None
        )

    def to_json(self) -> dict[str, Any]:
        """Return the message in OpenAI's form, with `reasoning_content` if there is reasoning."""
        content = None if self.tool_calls and not self.content else self.content
        plain: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            plain["reasoning_content"] = self.reasoning
        if self.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return plain


def make_answer(parsed: Parsed, *, tools_offered: bool, token_hex: TokenHex) -> Answer:
    """Make the answer from parsed tokens.

    Malformed calls stay visible at the end of the content as they were written, so that the agent
    can react to them and nothing is silently lost. Without tools, every call is malformed.
    """
    calls: list[ToolCall] = []
    texts = [parsed.content, *parsed.malformed]
    taken: set[str] = set()
    for call in parsed.calls:
        arguments = _arguments_text(call) if tools_offered else None
        if arguments is None:
            texts.append(call.raw)
            continue
        # Some formats number their calls: such an id is part of the conversation's tokens.
        own_id = call.id if call.id and call.id not in taken else None
        call_id = own_id or f"call_{token_hex(12)}"
        taken.add(call_id)
        calls.append(ToolCall(call_id, call.name, arguments))
    content = "\n".join(text for text in texts if text)
    malformed = len(parsed.malformed) + len(parsed.calls) - len(calls) if tools_offered else 0
    return Answer(content, parsed.reasoning, tuple(calls), malformed)


def _arguments_text(call: ParsedCall) -> str | None:
    """Return the call's arguments as the text of a JSON object, None if they are not an object."""
    arguments = call.arguments
    try:
        call.name.encode()
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        return as_json(arguments) if isinstance(arguments, dict) else None
    except (ValueError, RecursionError):
        return None
