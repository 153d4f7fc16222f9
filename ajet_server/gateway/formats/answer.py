"""From what the model wrote to the assistant message that the client gets."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall, as_json
from ajet_server.gateway.rendering.parsing import Parsed, ParsedCall

TokenHex = Callable[[int], str]
"""Random hex text from a number of bytes, as `secrets.token_hex`."""

# Begins with what the operating system has, and need not ask it again for every call.
_random = random.Random()  # noqa: S311 - for names, not for secrets


def random_hex(size: int) -> str:
    """Hex text of `size` random bytes, for names; anybody may guess the next one."""
    return _random.randbytes(size).hex()


@dataclass(frozen=True, slots=True)
class Answer:
    """An assistant message.

    :param content: "" if there is only reasoning or tool calls.
    :param malformed: attempts at a tool call that cannot be run, and are shown in `content` instead.
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
        """The message in OpenAI's form, with `reasoning_content` where there is reasoning."""
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
    """The answer to what was parsed.

    Attempts at a call that cannot be run stay visible at the end of the content, as they were written:
    the agent can react to them, and nothing is silently lost. Without tools every call is one.
    """
    calls: list[ToolCall] = []
    texts = [parsed.content, *parsed.malformed]
    taken: set[str] = set()
    for call in parsed.calls:
        arguments = _arguments_text(call) if tools_offered else None
        if arguments is None:
            texts.append(call.raw)
            continue
        # Some formats number their calls; such an id is part of the conversation's tokens.
        own_id = call.id if call.id and call.id not in taken else None
        call_id = own_id or f"call_{token_hex(12)}"
        taken.add(call_id)
        calls.append(ToolCall(call_id, call.name, arguments))
    content = "\n".join(text for text in texts if text)
    malformed = len(parsed.malformed) + len(parsed.calls) - len(calls) if tools_offered else 0
    return Answer(content, parsed.reasoning, tuple(calls), malformed)


def _arguments_text(call: ParsedCall) -> str | None:
    """The call's arguments as the text of a JSON object, None if they are something else."""
    arguments = call.arguments
    try:
        call.name.encode()
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        return as_json(arguments) if isinstance(arguments, dict) else None
    except (ValueError, RecursionError):
        return None
