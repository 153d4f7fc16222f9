"""Messages of a conversation, for display and for finding where timelines diverge."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageText:
    """One message, as parsed by the gateway.

    :param role: ``system``, ``user``, ``assistant`` or ``tool``.
    :param tool_calls: JSON text of an assistant's calls, in canonical form; "" if there are none.
    :param tool_call_id: for a tool message, the id of the call that it answers.
    :param name: for a tool message, the name of the called function.
    """

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: str = ""
    tool_call_id: str = ""
    name: str = ""

    @property
    def key(self) -> bytes:
        """[16] digest of the message without its reasoning, which templates may drop."""
        fields = (self.role, self.content, self.tool_calls, self.tool_call_id)
        encoded = [text.encode("utf-8", "surrogatepass") for text in fields]
        # Start with the lengths, so that the encoding is unambiguous.
        lengths = ",".join(str(len(data)) for data in encoded)
        return hashlib.sha256(b"".join((lengths.encode(), b":", *encoded))).digest()[:16]


@dataclass(frozen=True, slots=True)
class PlacedMessage:
    """A message and the position of its tokens in a call's prompt.

    Tokens between messages belong to none.

    :param start: offset of its first token; for an answer, which is not part of the prompt, of its
        first sampled token, although in a prompt it would begin with the header of its role.
    :param end: offset after its last token.
    """

    start: int
    end: int
    text: MessageText
