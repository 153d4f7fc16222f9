"""Find out where a model's template accepts system messages, and rewrite the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ajet_server.gateway.rendering.messages import ChatMessage, Role

_ROLES: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant"}
_WORDS = ("Apple", "Birch", "Cedar", "Daisy", "Elder")
# Conversations with system messages after other messages, without and with one at the beginning.
_LATER = {False: ("us", "usu", "uasu"), True: ("sus", "suas", "suasu")}
_BETWEEN = "\n\n"

Write = Callable[[Sequence[ChatMessage]], str | None]
"""Returns the text of a conversation, None if the template refuses it."""


@dataclass(frozen=True, slots=True)
class Expressible:
    """A conversation in a form that the template accepts.

    :param messages: [R] messages to render.
    :param places: [M] for each original message, the index in `messages` of the one that contains
        it, in ascending order.
    """

    messages: Sequence[ChatMessage]
    places: Sequence[int]

    @property
    def changed(self) -> bool:
        """Whether messages were joined."""
        return len(self.messages) < len(self.places)

    def origins(self) -> list[int]:
        """Return [R] for each rendered message, the index of the first message that is in it."""
        origins: list[int] = []
        for said, place in enumerate(self.places):
            if place == len(origins):
                origins.append(said)
        return origins


class SystemMessages:
    """Rewrites system messages so that the model sees each of them, in its place.

    Many templates accept a system message only at the beginning. They refuse others, leave them
    out, or move them to the beginning, which would change the tokens of all earlier turns.
    Rendering short conversations, once per model, shows what a template does:

    - Messages that the template accepts stay unchanged.
    - Several messages at the beginning are joined with a blank line, if the template does not
      accept them separately.
    - A message that the template does not accept in its place becomes a user message. If user
      messages must not follow each other, it is joined with its neighbour.

    The result for a message does not depend on later messages, except for neighbours up to the next
    answer, so that a conversation keeps its tokens when it continues.

    :param write: renders a conversation with the template.
    """

    def __init__(self, write: Write) -> None:
        self._write = write

    def expressible(
        self, messages: Sequence[ChatMessage], *, led: bool | None = None
    ) -> Expressible:
        """Return `messages` in a form that the template accepts.

        :param led: whether the conversation that `messages` continue begins with a system message;
            None if they are the whole conversation.
        """
        leading = 0
        if led is None:
            while leading < len(messages) and messages[leading].role == "system":
                leading += 1
            led = leading > 0
        later = any(message.role == "system" for message in messages[leading:])
        if not later and (leading == 0 or (leading == 1 and not self._takes_none)):
            return Expressible(messages, range(len(messages)))
        expressed: list[ChatMessage] = []
        places: list[int] = []
        moved_last = False
        for i, message in enumerate(messages):
            moved = message.role == "system" and (
                self._takes_none if i < leading else not self._takes_later[led]
            )
            if moved:
                message = replace(message, role="user")  # noqa: PLW2901 - what is written of it
            if message.role == "user":
                follows = bool(expressed) and expressed[-1].role == "user"
                joins = follows and self._alternates and (moved or moved_last)
            else:
                joins = 0 < i < leading and not self._takes_several
            if joins:
                texts = [text for text in (expressed[-1].content, message.content) if text]
                expressed[-1] = replace(expressed[-1], content=_BETWEEN.join(texts), name=None)
            else:
                expressed.append(message)
            places.append(len(expressed) - 1)
            moved_last = moved
        return Expressible(expressed, places)

    @cached_property
    def _takes_none(self) -> bool:
        return not self._shows("su")

    @cached_property
    def _takes_several(self) -> bool:
        return self._shows("ssu")

    @cached_property
    def _alternates(self) -> bool:
        """Whether user messages must not follow each other."""
        return not self._shows("uauu")

    @cached_property
    def _takes_later(self) -> dict[bool, bool]:
        return {led: all(map(self._shows, probes)) for led, probes in _LATER.items()}

    def _shows(self, roles: str) -> bool:
        """Whether the text of a conversation has all its messages once, in order, and separated."""
        said = list(zip(roles, _WORDS, strict=False))
        text = self._write([ChatMessage(_ROLES[role], word) for role, word in said])
        if text is None:
            return False
        end = -1
        for _, word in said:
            start = text.find(word)
            if start <= end or text.count(word) > 1:
                return False
            end = start + len(word)
        return True
