"""Measure how answers would differ if they were rendered from text; this is only reported.

There are two differences: tokens that the template would write differently, and fields that the
agent sends back in other bytes. Neither affects training, because prompts extend the sampled tokens
instead of rendering the answer again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from functools import lru_cache

from ajet_core.errors import RequestError
from ajet_core.timeline import MessageText
from ajet_core.timeline.radix import common_prefix
from ajet_server.gateway.rendering.canonical import canonical_arguments
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall
from ajet_server.gateway.rendering.renderer import ChatRenderer

_QUESTION = ChatMessage("user", "go")

# Text with no special meaning to a template and no white space around it, which some templates
# strip. If a template writes the texts below verbatim, it writes all such text verbatim.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 \n.,;:!?'\"()*/+=%_-]*[A-Za-z0-9.,;:!?)*]")
_PLAIN_TEXTS = (
    "ok",
    "Where is it?",
    '1. Go up, then left (or down).\n2. Wait: it\'s "there"!\n\n* a/b = 50 % - 1; c_d + 2 *',
)

# In tokens. Agents that act get the same few short answers again and again, mostly tool calls.
_SHORT_ANSWER = 64
_REMEMBERED = 1024


class DriftMeter:
    """Compares sampled answers with the template's rendering of them as history. Thread-safe."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._stops = frozenset(renderer.stop_token_ids)
        self._asked: list[int] | None = None
        self._header: list[int] = []
        self._plainly: bool | None = None
        # The place in history that agreed last time, for answers with and without reasoning.
        self._before_more: dict[bool, bool] = {}
        self._writes_ids: bool | None = None
        self._drift_of_short = lru_cache(maxsize=_REMEMBERED)(self._drift)

    def drift(self, sampled_ids: list[int], answer: ChatMessage) -> int:
        """Return how many of the sampled tokens the template would write differently.

        An answer is either the last message of the history or is followed by another one, and some
        templates write these differently, for example with an empty reasoning block. The place with
        fewer differences counts. The token that ends the answer does not count, because the
        template writes its own.

        :param answer: answer that the client gets.
        :return: 0 if the template writes the answer as it was sampled, or if it cannot render the
            question used for the comparison; at least 1 if it adds tokens to the answer.
        """
        if not self._knows_header():
            return 0
        if len(sampled_ids) > _SHORT_ANSWER:
            return self._drift(tuple(sampled_ids), answer)
        if answer.tool_calls and not self._template_writes_ids():
            # Every tool call has an id of its own.
            calls = (replace(c, id=_call_id(n)) for n, c in enumerate(answer.tool_calls))
            answer = replace(answer, tool_calls=tuple(calls))
        return self._drift_of_short(tuple(sampled_ids), answer)

    def _drift(self, sampled_ids: tuple[int, ...], answer: ChatMessage) -> int:
        stopped = bool(sampled_ids) and sampled_ids[-1] in self._stops
        sampled = list(sampled_ids[:-1] if stopped else sampled_ids)
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
                # Differences that depend on the place are at the beginning.
                break
        # If the template cannot render the answer at all, every token counts as changed.
        return len(sampled) if least is None else least

    def _knows_header(self) -> bool:
        """Whether the template can render the question that precedes answers here."""
        if self._asked is None:
            try:
                question = self._renderer.render([_QUESTION], None, asking=False).ids.tolist()
                asked = self._renderer.render([_QUESTION], None).ids.tolist()
            except RequestError:
                asked = []
            else:
                self._header = asked[common_prefix(question, asked, 0) :]
            # Set this last: other threads check it.
            self._asked = asked
        return bool(self._asked)

    def _writes_plainly(self) -> bool:
        """Whether the template writes the text of plain answers verbatim, in separate tokens.

        If so, a plain answer whose text encodes to the sampled tokens has no drift, and rendering
        is not necessary.
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

    def _template_writes_ids(self) -> bool:
        """Whether the template may write the ids of tool calls."""
        if self._writes_ids is None:
            try:
                first, second = (
                    [self._written(_called(_call_id(n)), before_more=b) for b in (False, True)]
                    for n in (0, 1)
                )
                self._writes_ids = first != second
            except RequestError:
                self._writes_ids = True
        return self._writes_ids

    def _written(self, answer: ChatMessage, *, before_more: bool) -> list[int]:
        """Return the template's tokens for the answer, without its header and stop token."""
        messages = [_QUESTION, answer]
        if before_more:
            calls = answer.tool_calls
            messages += [
                ChatMessage("tool", "", tool_call_id=call.id, name=call.name) for call in calls
            ] or [_QUESTION]
        rendering = self._renderer.render(messages, None, asking=False)
        written = rendering.ids.tolist()
        if rendering.indices is not None:
            ((start, end),) = self._renderer.spans(rendering, messages[:2], None, first=1)
            written = written[start:end]
            written = written[common_prefix(written, self._header, 0) :]
        else:
            written = written[common_prefix(written, self._asked or [], 0) :]
        stops = [i for i, token in enumerate(written) if token in self._stops]
        if stops:
            # Without message indices, later messages are included: the first stop token is the
            # answer's.
            written = written[: stops[0 if rendering.indices is None else -1]]
        return written


def _call_id(number: int) -> str:
    """Return an id of nine characters, the only form that all templates accept."""
    return f"{number:09}"


def _called(call_id: str) -> ChatMessage:
    return ChatMessage("assistant", tool_calls=(ToolCall(call_id, "f", "{}"),))


def _changed(sampled: list[int], written: list[int]) -> int:
    if sampled == written:
        return 0
    start = common_prefix(sampled, written, 0)
    end, limit = 0, min(len(sampled), len(written)) - start
    while end < limit and sampled[-1 - end] == written[-1 - end]:
        end += 1
    return max(1, len(sampled) - start - end)


def arguments_digest(message: ChatMessage) -> str | None:
    """Return the hex digest of the arguments' exact text, None if all are in canonical form."""
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
    """Return the fields of an answer that an agent sends back with the same meaning in other bytes.

    :param given: text of the answer that the agent got.
    :param digest: `arguments_digest` of that answer.
    :param echo: answer as the agent sends it back.
    """
    fields = []
    if echo.content != given.content:
        fields.append("content")
    if arguments_digest(echo) != digest:
        fields.append("arguments")
    if (echo.reasoning or "") != given.reasoning:
        fields.append("reasoning")
    return fields
