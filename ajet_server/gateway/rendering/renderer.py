"""Messages to token ids and sampled token ids to answers, by the `renderers` library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from ajet_core.errors import RequestError
from ajet_server.gateway.rendering.call_formats import CallFormat
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec, renderer_messages
from ajet_server.gateway.rendering.parsing import AnswerParser, Parsed
from ajet_server.gateway.rendering.placing import Span, attributed_spans, template_spans
from ajet_server.gateway.rendering.settling import Settling
from ajet_server.gateway.rendering.system_messages import SystemMessages
from ajet_server.gateway.rendering.tokenizer import GatewayTokenizer, TokenJson

# What takes some five milliseconds; going to a thread and back takes a tenth of one. A Jinja template is
# evaluated up to five times, and most loop over the messages again for each of them.
_QUICK = 32_768
_QUICK_TEMPLATE = 4_096


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered conversation.

    :param ids: [P] token ids.
    :param indices: [P] by token, which message it belongs to, -1 for none; None where a renderer cannot say.
    """

    ids: list[int]
    indices: list[int] | None


@dataclass(frozen=True, slots=True)
class Extension:
    """A prompt that goes on from a call.

    :param ids: [P] token ids; the call's prompt and sampled tokens come first.
    :param spans: of the new messages.
    :param written: [N] what the template writes for the whole conversation, where it was asked.
    """

    ids: list[int]
    spans: list[Span]
    written: list[int] | None = None


class ChatRenderer:
    """One model's way of writing conversations.

    :param renderer: a `renderers.base.Renderer`.
    :param calls: how tool calls are written, if the renderer's own parser does not read any.
    :param keeping: the same, but keeping reasoning in history, if the family has that; it extends
        conversations that hold no reasoning across new questions, where the first one would needlessly
        render again.
    :ivar stop_token_ids: each of them ends an answer.
    :ivar quick_characters: requests of more characters take so long to render that the event loop should not
        do it.
    :ivar token_json: tokens as JSON.
    :ivar reads_calls: whether tool calls are told from text.
    :ivar settling: how far `parse` of more tokens only adds to what `parse` of fewer gave; None if nothing says.
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
        self._renderer = renderer
        self._keeping = keeping or renderer
        self._tokenizer = tokenizer
        stop_ids = dict.fromkeys([*renderer.get_stop_token_ids(), *extra_stop_ids])
        self.stop_token_ids: tuple[int, ...] = tuple(stop_ids)
        # The library's renderer over a Jinja template can only render whole conversations.
        self._by_template = type(renderer).__name__ == "DefaultRenderer"
        self.reads_calls = calls is not None or not self._by_template
        self._parser = (
            AnswerParser(name, renderer, tokenizer, self.stop_token_ids)
            if calls is None
            else calls.parser
        )
        self.settling = Settling.of(name if calls is None else calls.settles_as, tokenizer)
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
        """A conversation in tokens.

        :param asking: up to where the model's next answer begins, else to the end of the last message.
        :raises RequestError: the model's template cannot express the messages.
        """
        said = self._system.expressible(messages)
        rendering = self._rendered(said.messages, tools, asking=asking)
        if rendering.indices is None or not said.changed:
            return rendering
        # Messages that were put together are the first one's.
        origins = [*said.origins(), -1]
        return replace(rendering, indices=[origins[index] for index in rendering.indices])

    def _rendered(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None, *, asking: bool
    ) -> Rendering:
        plain, offered = renderer_messages(messages), list(tools) if tools else None
        renderer = self._renderer
        try:
            if self._by_template:
                # With attribution it would evaluate the template for every message.
                ids = renderer.render_ids(plain, tools=offered, add_generation_prompt=asking)
                return Rendering(ids, None)
            rendered = renderer.render(plain, tools=offered, add_generation_prompt=asking)
        except Exception as error:
            # Templates raise whatever they like about conversations they were not made for.
            raise RequestError(
                f"messages: renderer {self.name!r} cannot express this conversation: {error}",
                param="messages",
            ) from error
        return Rendering(rendered.token_ids, rendered.message_indices)

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
        """Where the messages from `first` on stand in their rendering, which was made to ask."""
        if rendering.indices is not None:
            return attributed_spans(rendering.indices, len(messages), first=first)
        if first == len(messages):
            return []
        said = self._system.expressible(messages)
        found = template_spans(
            self._tokenizer,
            renderer_messages(said.messages),
            list(tools) if tools else None,
            rendering.ids,
            said.places[first],
        )
        if not said.changed:
            return found
        places = said.places[first:]
        spans = [found[place - places[0]] for place in places]
        again = [place == before for before, place in pairwise([-1, *places])]
        return [
            (end, end) if empty else (start, end)
            for (start, end), empty in zip(spans, again, strict=True)
        ]

    def bridge(
        self,
        prompt_ids: list[int],
        sampled_ids: list[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        *,
        reasoned: bool,
        led: bool = False,
    ) -> Extension | None:
        """A prompt that begins with `prompt_ids` and `sampled_ids` and goes on with `new_messages`.

        :param reasoned: whether the tokens so far hold reasoning.
        :param led: whether the conversation begins with a system message.
        :return: None if the renderer cannot do that exactly.
        """
        if self._by_template:
            return None
        renderer = self._renderer if reasoned else self._keeping
        said = self._system.expressible(new_messages, led=led)
        if said.changed:
            return None
        try:
            bridged = renderer.bridge_to_next_turn(
                prompt_ids,
                sampled_ids,
                renderer_messages(said.messages),
                tools=list(tools) if tools else None,
            )
        except (ValueError, TypeError, KeyError, AssertionError):
            # What cannot be bridged is rendered, and that says clearly what is wrong.
            return None
        if bridged is None:
            return None
        ids: list[int] = bridged.token_ids
        prompt, known = len(prompt_ids), len(prompt_ids) + len(sampled_ids)
        if ids[:prompt] != prompt_ids or ids[prompt:known] != sampled_ids:
            return None
        indices = bridged.message_indices[known:]
        return Extension(ids, attributed_spans(indices, len(new_messages), offset=known))

    def drops_reasoning(self, new_messages: Sequence[ChatMessage], *, led: bool = False) -> bool:
        """Whether the family is known to take reasoning out of history when these messages follow.

        :param led: whether the conversation begins with a system message.
        """
        if self._renderer.effective_thinking_retention != "tool_cycle":
            return False
        said = self._system.expressible(new_messages, led=led)
        return any(message.role == "user" for message in said.messages)

    @cached_property
    def writes_names(self) -> bool:
        """Whether the model is shown who says a message, where that has a name."""
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
        prompt_ids: list[int],
        tools: Sequence[ToolSpec] | None,
    ) -> Parsed:
        """What `sampled_ids` say in answer to `prompt_ids`; any ids whatever can be parsed."""
        return self._parser.parse(sampled_ids, prompt_ids, tools)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""
