"""What the tokens would have lost, had answers gone the way through text: reported, never applied.

Both differences are repaired by extending the sampled tokens instead of rendering the answer again.
"""

from __future__ import annotations

import hashlib
import re

from ajet_core.errors import RequestError
from ajet_core.timeline import MessageText
from ajet_core.timeline.radix import common_prefix
from ajet_server.gateway.rendering.canonical import canonical_arguments
from ajet_server.gateway.rendering.messages import ChatMessage
from ajet_server.gateway.rendering.placing import attributed_spans
from ajet_server.gateway.rendering.renderer import ChatRenderer

_QUESTION = ChatMessage("user", "go")

# Words and marks that mean nothing to a template, without white space around them, which some take off. If these
# texts are written as they are, others of the kind are.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 \n.,;:!?'\"()*/+=%_-]*[A-Za-z0-9.,;:!?)*]")
_PLAIN_TEXTS = (
    "ok",
    "Where is it?",
    '1. Go up, then left (or down).\n2. Wait: it\'s "there"!\n\n* a/b = 50 % - 1; c_d + 2 *',
)


class DriftMeter:
    """Compares sampled answers with what the template would write for them in history. Any thread may."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._stops = frozenset(renderer.stop_token_ids)
        self._asked: list[int] | None = None
        self._header: list[int] = []
        self._plainly: bool | None = None
        # Which place in history agreed the last time, for answers with and without reasoning.
        self._before_more: dict[bool, bool] = {}

    def drift(self, sampled_ids: list[int], answer: ChatMessage) -> int:
        """How many of the sampled tokens the template would write otherwise.

        The answer stands in history at the end or before another message, and some templates write these
        differently (an empty block for reasoning, say); of the two, the one with fewer differences counts.
        The token that ends the answer does not count: the template has its own.

        :param answer: what the client is told.
        :return: 0 if the answer comes back as it was sampled, or if the template does not write the question
            that this is tried with; at least 1 where tokens are added to the answer.
        """
        stopped = bool(sampled_ids) and sampled_ids[-1] in self._stops
        sampled = sampled_ids[:-1] if stopped else sampled_ids
        if not self._knows_header():
            return 0
        plain = _PLAIN.fullmatch(answer.content) and not (answer.reasoning or answer.tool_calls)
        if plain and self._writes_plainly() and self._renderer.encode(answer.content) == sampled:
            return 0
        key = bool(answer.reasoning)
        first = self._before_more.get(key, False)
        least: int | None = None
        for before_more in (first, not first):
            try:
                written = self._written(answer, before_more=before_more)
            except RequestError:
                continue
            changed = _changed(sampled, written)
            if least is None or changed < least:
                least = changed
                self._before_more[key] = before_more
            if changed == 0 or written[:1] == sampled[:1]:
                # What depends on the place comes first.
                break
        # What the template cannot write at all would not come back as one token.
        return len(sampled) if least is None else least

    def _knows_header(self) -> bool:
        """Whether the template writes the question that answers are put behind here."""
        if self._asked is None:
            try:
                question = self._renderer.render([_QUESTION], None, asking=False).ids
                asked = self._renderer.render([_QUESTION], None).ids
            except RequestError:
                asked = []
            else:
                self._header = asked[common_prefix(question, asked, 0) :]
            # Last, for another thread that looks.
            self._asked = asked
        return bool(self._asked)

    def _writes_plainly(self) -> bool:
        """Whether the template writes plain answers as they are, between tokens of their own.

        Then nothing has drifted if the answer's text alone gives the sampled tokens, and nothing need be rendered.
        """
        if self._plainly is None:
            try:
                self._plainly = all(
                    self._written(ChatMessage("assistant", text), before_more=True)
                    == self._renderer.encode(text)
                    for text in _PLAIN_TEXTS
                )
            except RequestError:
                self._plainly = False
        return self._plainly

    def _written(self, answer: ChatMessage, *, before_more: bool) -> list[int]:
        """What the template writes for the answer, without the header before and the stop token behind."""
        messages = [_QUESTION, answer]
        if before_more:
            calls = answer.tool_calls
            messages += [
                ChatMessage("tool", "", tool_call_id=call.id, name=call.name) for call in calls
            ] or [_QUESTION]
        rendering = self._renderer.render(messages, None, asking=False)
        if rendering.indices is not None:
            ((start, end),) = attributed_spans(rendering.indices, 2, first=1)
            written = rendering.ids[start:end]
            written = written[common_prefix(written, self._header, 0) :]
        else:
            written = rendering.ids[common_prefix(rendering.ids, self._asked or [], 0) :]
        stops = [i for i, token in enumerate(written) if token in self._stops]
        if stops:
            # A template's text cannot be taken apart, so the answer's own end is the first.
            written = written[: stops[0 if rendering.indices is None else -1]]
        return written


def _changed(sampled: list[int], written: list[int]) -> int:
    if sampled == written:
        return 0
    start = common_prefix(sampled, written, 0)
    end, limit = 0, min(len(sampled), len(written)) - start
    while end < limit and sampled[-1 - end] == written[-1 - end]:
        end += 1
    return max(1, len(sampled) - start - end)


def arguments_digest(message: ChatMessage) -> str | None:
    """Hex digest of the very text of the arguments, None if all are in canonical form."""
    texts = [call.arguments for call in message.tool_calls]
    if all(text == canonical_arguments(text) for text in texts):
        return None
    hashed = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        hashed.update(f"{len(data)}:".encode())
        hashed.update(data)
    return hashed.hexdigest()[:16]


def echo_fields(given: MessageText, digest: str | None, echo: ChatMessage) -> list[str]:
    """In which fields an agent sends an answer back in other bytes than it got, though it says the same.

    :param digest: `arguments_digest` of the answer that was given.
    """
    fields = []
    if echo.content != given.content:
        fields.append("content")
    if arguments_digest(echo) != digest:
        fields.append("arguments")
    if (echo.reasoning or "") != given.reasoning:
        fields.append("reasoning")
    return fields
