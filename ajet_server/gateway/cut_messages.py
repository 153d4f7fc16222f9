"""Messages that are cut to what a viewer can read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ajet_core.timeline import MessageText

_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class CutMessage:
    """A message without the middle of its long parts.

    :param cut: number of characters that were left out.
    """

    text: MessageText
    cut: int = 0

    @property
    def size(self) -> int:
        """The number of characters that it shows."""
        text = self.text
        return len(text.content) + len(text.reasoning) + len(text.tool_calls)


def cut_message(text: MessageText, chars: int) -> CutMessage:
    """Return a message whose content, reasoning and tool calls are cut to `chars` characters each.

    Half of them are the first, half the last.
    """
    content, reasoning, tool_calls = (
        _cut(part, chars) for part in (text.content, text.reasoning, text.tool_calls)
    )
    shown = replace(
        text,
        content=content,
        reasoning=reasoning,
        tool_calls=tool_calls,
        tool_call_id=_writable(text.tool_call_id[:_NAME_CHARS]),
        name=_writable(text.name[:_NAME_CHARS]),
    )
    whole = (text.content, text.reasoning, text.tool_calls)
    return CutMessage(shown, sum(max(0, len(part) - chars) for part in whole))


def _cut(text: str, chars: int) -> str:
    cut = len(text) - chars
    if cut <= 0:
        return _writable(text)
    half = chars // 2
    return _writable(f"{text[:half]}\n[{cut} characters are left out]\n{text[-half:]}")


def _writable(text: str) -> str:
    # JSON has no place for half of a surrogate pair, which agents may send.
    return text.encode("utf-8", "replace").decode()
