"""What a conversation says, beside its tokens: for people, and to tell where timelines part."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageText:
    """One message as the gateway understood it.

    :param role: ``system``, ``user``, ``assistant`` or ``tool``.
    :param tool_calls: JSON text of an assistant's calls, in one canonical form; "" if there are none.
    :param tool_call_id: of a tool message: the call it answers.
    :param name: of a tool message: the function that was called.
    """

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: str = ""
    tool_call_id: str = ""
    name: str = ""

    @property
    def key(self) -> bytes:
        """[16] digest of what the message says; reasoning, which templates may drop, does not count."""
        fields = (self.role, self.content, self.tool_calls, self.tool_call_id)
        encoded = [text.encode("utf-8", "surrogatepass") for text in fields]
        # Lengths first, so that no two messages are written alike.
        lengths = ",".join(str(len(data)) for data in encoded)
        return hashlib.sha256(b"".join((lengths.encode(), b":", *encoded))).digest()[:16]


@dataclass(frozen=True, slots=True)
class PlacedMessage:
    """A message and where its tokens stand in a call's prompt; what is between messages belongs to none.

    :param start: offset of its first token; for an answer, which is not part of the prompt, of its first
        sampled token, although in a prompt it would begin with the header of its role.
    :param end: offset behind its last token.
    """

    start: int
    end: int
    text: MessageText
