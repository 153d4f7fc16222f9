"""Render messages as token ids and parse sampled token ids, with the `renderers` library."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from ajet_core.errors import RequestError
from ajet_server.gateway.rendering.call_formats import CallFormat
from ajet_server.gateway.rendering.long_texts import StandIns
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec, renderer_messages
from ajet_server.gateway.rendering.parsing import AnswerParser, Parsed
from ajet_server.gateway.rendering.placing import Span, attributed_spans, template_spans
from ajet_server.gateway.rendering.stable_prefix import StablePrefix
from ajet_server.gateway.rendering.system_messages import SystemMessages
from ajet_server.gateway.rendering.tokenizer import (
    FastTokenizer,
    GatewayTokenizer,
    TokenJson,
)

_log = logging.getLogger("ajet.server")

# Characters that render in about five milliseconds; switching to a thread and back takes 0.1 ms. A
# Jinja template is evaluated up to five times, and most loop over all messages for each message.
_QUICK = 32_768
_QUICK_TEMPLATE = 4_096
# Renderers search for the start of the answer backwards from the prompt's end; some also look at
# its first tokens. They copy the prompt several times, so they get only these two parts.
_HEAD, _TAIL = 16, 512


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered conversation.

    :param ids: [P] token ids.
    :param indices: [S] index of the message of each token or long text, -1 for none; None if the
        renderer cannot attribute tokens.
    :param starts: [S + 1] where the tokens of each of `indices` begin, then P; None if each is one
        token.
    """

    ids: array[int]
    indices: list[int] | None
    starts: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Extension:
    """A prompt that continues from a call.

    :param ids: [P] token ids, beginning with the call's prompt and sampled tokens.
    :param spans: spans of the new messages.
    :param written: [N] the template's rendering of the whole conversation, None if it was not made.
    """

    ids: array[int]
    spans: list[Span]
    written: array[int] | None = None


class ChatRenderer:
    """Renders conversations and parses answers for one model.

    :param renderer: a `renderers.base.Renderer`.
    :param keeping: a renderer of the same family that keeps reasoning in history, if the family
        supports that. It extends conversations without reasoning across new questions, which
        `renderer` would needlessly render again.
    :param calls: the format of tool calls, if the renderer's own parser does not read any.
    :param extra_stop_ids: tokens that end an answer, besides the renderer's own.
    :ivar call_family: family whose format its tool calls have.
    :ivar stop_token_ids: tokens that end an answer.
    :ivar quick_characters: requests with more characters take too long to render on the event loop.
    :ivar token_json: tokens as JSON.
    :ivar reads_calls: whether the parser tells tool calls apart from text.
    :ivar digest: of the tokenizer's files (`tokenizer_digest`), "" if it was not made from files.
    :ivar stable_prefix: which part of a parsed answer further tokens can only extend; None if
        unknown.
    """

    def __init__(
        self,
        name: str,
        renderer: Any,
        tokenizer: GatewayTokenizer,
        *,
        keeping: Any = None,
        calls: CallFormat | None = None,
        extra_stop_ids: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.digest = ""
        self.call_family = name if calls is None else calls.family
        self._renderer = renderer
        self._keeping = keeping or renderer
        self._tokenizer = tokenizer
        stop_ids = dict.fromkeys([*renderer.get_stop_token_ids(), *extra_stop_ids])
        self.stop_token_ids: tuple[int, ...] = tuple(stop_ids)
        # The library's renderer for Jinja templates can only render whole conversations.
        self._by_template = type(renderer).__name__ == "DefaultRenderer"
        self._long_texts = tokenizer.long_texts if isinstance(tokenizer, FastTokenizer) else None
        self.reads_calls = calls is not None or not self._by_template
        self._parser = (
            AnswerParser(name, renderer, tokenizer, self.stop_token_ids)
            if calls is None
            else calls.parser
        )
        self.stable_prefix = StablePrefix.of(name if calls is None else calls.streams_as, tokenizer)
        self.quick_characters = _QUICK_TEMPLATE if self._by_template else _QUICK
        self._system = SystemMessages(self._text_of)
        self.token_json = TokenJson(tokenizer)

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        *,
        asking: bool = True,
    ) -> Rendering:
        """Render a conversation as tokens.

        :param asking: whether to end where the model's next answer begins, else at the end of the
            last message.
        :raises RequestError: the model's template cannot express the messages.
        """
        said = self._system.expressible(messages)
        rendering = self._rendered(said.messages, tools, asking=asking)
        if rendering.indices is None or not said.changed:
            return rendering
        # The tokens of joined messages belong to the first of them.
        origins = [*said.origins(), -1]
        return replace(rendering, indices=[origins[index] for index in rendering.indices])

    def _rendered(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None, *, asking: bool
    ) -> Rendering:
        plain, offered = renderer_messages(messages), list(tools) if tools else None
        renderer = self._renderer
        try:
            if self._by_template:
                # To attribute tokens it would evaluate the template for every message.
                ids = renderer.render_ids(plain, tools=offered, add_generation_prompt=asking)
                return Rendering(array("I", ids), None)
            return self._attributed(plain, offered, asking=asking)
        except Exception as error:
            # Templates raise any exception for conversations that they do not support.
            raise RequestError(
                f"messages: renderer {self.name!r} cannot express this conversation: {error}",
                param="messages",
            ) from error

    def _attributed(
        self, messages: list[dict[str, Any]], tools: list[ToolSpec] | None, *, asking: bool
    ) -> Rendering:
        """Render with the library's renderer of the family, which attributes tokens to messages."""

        def rendered() -> Any:
            return self._renderer.render(messages, tools=tools, add_generation_prompt=asking)

        library, long = self._with_stand_ins(rendered)
        return _replaced(library.token_ids, library.message_indices, long)

    def _with_stand_ins(self, write: Callable[[], Any]) -> tuple[Any, StandIns | None]:
        """Call `write`, which has stand-ins for long texts if the renderer allows that."""
        if (texts := self._long_texts) is None:
            return write(), None
        try:
            with texts.stand_ins() as long:
                return write(), long
        except OverflowError:
            if not long:
                raise
        # This renderer decodes the tokens of texts.
        plain = write()
        self._long_texts = None
        _log.debug("renderer %s is slow for long texts: it decodes them", self.name)
        return plain, None

    def _text_of(self, messages: Sequence[ChatMessage]) -> str | None:
        try:
            return self.decode(self._rendered(messages, None, asking=True).ids)
        except RequestError:
            return None

    def spans(
        self,
        rendering: Rendering,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        first: int = 0,
    ) -> list[Span]:
        """Return the spans of the messages from `first` on in `rendering`.

        :param rendering: rendering of `messages`, made with `asking`.
        """
        if rendering.indices is not None:
            return _spans(rendering, len(messages), first=first)
        if first == len(messages):
            return []
        said = self._system.expressible(messages)
        written = template_spans(
            self._tokenizer,
            renderer_messages(said.messages),
            list(tools) if tools else None,
            rendering.ids,
            said.places[first],
        )
        if not said.changed:
            return written
        places = said.places[first:]
        spans = [written[place - places[0]] for place in places]
        again = [place == before for before, place in pairwise([-1, *places])]
        return [
            (end, end) if empty else (start, end)
            for (start, end), empty in zip(spans, again, strict=True)
        ]

    def bridge(
        self,
        prompt_ids: array[int],
        sampled_ids: list[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        *,
        reasoned: bool,
        led: bool = False,
    ) -> Extension | None:
        """Extend `prompt_ids` and `sampled_ids` by `new_messages`, by the renderer's own rules.

        :param reasoned: whether the tokens so far contain reasoning.
        :param led: whether the conversation begins with a system message.
        :return: None if the renderer cannot extend these tokens exactly.
        """
        if self._by_template:
            return None
        renderer = self._renderer if reasoned else self._keeping
        said = self._system.expressible(new_messages, led=led)
        if said.changed:
            return None
        ends = _ends(prompt_ids)
        known = ends + sampled_ids

        def extended() -> Any:
            return renderer.bridge_to_next_turn(
                ends,
                sampled_ids,
                renderer_messages(said.messages),
                tools=list(tools) if tools else None,
            )

        try:
            bridged, long = self._with_stand_ins(extended)
            if bridged is None or bridged.token_ids[: len(known)] != known:
                return None
            indices = bridged.message_indices[len(known) :]
            new = _replaced(bridged.token_ids[len(known) :], indices, long)
        except (ValueError, TypeError, KeyError, AssertionError, OverflowError):
            # The whole conversation is rendered instead, with a clear error if it is invalid.
            return None
        before = prompt_ids + array("I", sampled_ids)
        spans = _spans(new, len(new_messages))
        moved = [(start + len(before), end + len(before)) for start, end in spans]
        return Extension(before + new.ids, moved)

    def drops_reasoning(self, new_messages: Sequence[ChatMessage], *, led: bool = False) -> bool:
        """Whether the family is known to drop reasoning from history when these messages follow.

        :param led: whether the conversation begins with a system message.
        """
        if self._renderer.effective_thinking_retention != "tool_cycle":
            return False
        said = self._system.expressible(new_messages, led=led)
        return any(message.role == "user" for message in said.messages)

    @cached_property
    def writes_names(self) -> bool:
        """Whether the template writes the names of messages' authors."""
        asked = ChatMessage("user", "hello")
        said = ChatMessage("assistant", "hello")
        plain = [asked, said, asked]
        for i, message in enumerate(plain[:2]):
            named = [*plain[:i], replace(message, name="somebody"), *plain[i + 1 :]]
            try:
                if self.render(named, None).ids != self.render(plain, None).ids:
                    return True
            except RequestError:
                continue
        return False

    def parse(
        self,
        sampled_ids: list[int],
        prompt_ids: Sequence[int],
        tools: Sequence[ToolSpec] | None,
    ) -> Parsed:
        """Parse `sampled_ids` as an answer to `prompt_ids`; any ids can be parsed."""
        return self._parser.parse(sampled_ids, _ends(prompt_ids), tools)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of plain text."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, including special tokens."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""


def _replaced(ids: list[int], indices: list[int], long: StandIns | None) -> Rendering:
    """Return a rendering of the library with the tokens of long texts.

    :param ids: [S] tokens and stand-ins.
    :param indices: [S] as `Rendering.indices`.
    """
    if not long:
        return Rendering(array("I", ids), indices)
    whole, starts = long.replaced(ids)
    return Rendering(whole, indices, starts)


def _spans(rendering: Rendering, count: int, *, first: int = 0) -> list[Span]:
    """Return the spans of `count` messages from `first` on, attributed by the renderer."""
    assert rendering.indices is not None, "the renderer attributes tokens"
    spans = attributed_spans(rendering.indices, count, first=first)
    starts = rendering.starts
    return spans if starts is None else [(starts[start], starts[end]) for start, end in spans]


def _ends(prompt_ids: Sequence[int]) -> list[int]:
    """Return the first and the last tokens of a prompt, or all of a short one."""
    if len(prompt_ids) <= _HEAD + _TAIL:
        return list(prompt_ids)
    return [*prompt_ids[:_HEAD], *prompt_ids[-_TAIL:]]
