"""Messages to token ids and sampled token ids to answers, by the `renderers` library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ajet_core.errors import RequestError
from ajet_core.server.rendering.messages import ChatMessage, ToolSpec, renderer_messages
from ajet_core.server.rendering.placing import Span, attributed_spans, template_spans
from ajet_core.server.rendering.settling import Settling
from ajet_core.server.rendering.tokenizer import GatewayTokenizer, TokenJson

# What takes some five milliseconds; going to a thread and back takes a tenth of one. A Jinja template is
# evaluated up to five times, and most loop over the messages again for each of them.
_QUICK = 32_768
_QUICK_TEMPLATE = 4_096


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call the model wrote.

    :param arguments: a JSON object, or JSON text of one.
    :param id: the call's id where the model's format has one.
    :param raw: the text it was written as, tags included.
    """

    name: str
    arguments: Any
    id: str | None
    raw: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """What sampled tokens say.

    :param content: text outside of reasoning and tool calls, stripped of surrounding white space.
    :param reasoning: likewise; "" if there is none.
    :param calls: well-formed tool calls.
    :param malformed: texts, tags included, of attempts at a tool call that are none.
    :param open: whether the reasoning was begun and not ended.
    """

    content: str
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()
    malformed: tuple[str, ...] = ()
    open: bool = False


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
    :param keeping: the same, but keeping reasoning in history, if the family has that; it extends
        conversations that hold no reasoning across new questions, where the first one would needlessly
        render again.
    :ivar stop_token_ids: each of them ends an answer.
    :ivar quick_characters: requests of more characters take so long to render that the event loop should not
        do it.
    :ivar token_json: tokens as JSON.
    :ivar settling: how far `parse` of more tokens only adds to what `parse` of fewer gave; None if nothing says.
    """

    def __init__(
        self,
        name: str,
        renderer: Any,
        tokenizer: GatewayTokenizer,
        *,
        keeping: Any = None,
        extra_stop_ids: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._renderer = renderer
        self._keeping = keeping or renderer
        self._tokenizer = tokenizer
        own_stops = renderer.get_stop_token_ids()
        stop_ids = dict.fromkeys([*own_stops, *extra_stop_ids])
        self.stop_token_ids: tuple[int, ...] = tuple(stop_ids)
        # The library's parsers take only those of the renderer itself off an answer.
        self._unparsed_stops = frozenset(stop_ids) - frozenset(own_stops)
        self._stops = frozenset(self.stop_token_ids)
        self.settling = Settling.of(name, tokenizer)
        self._header_end = (
            tokenizer.convert_tokens_to_ids("<|end_header_id|>") if name == "llama-3" else None
        )
        # The library's renderer over a Jinja template can only render whole conversations.
        self._by_template = type(renderer).__name__ == "DefaultRenderer"
        self.quick_characters = _QUICK_TEMPLATE if self._by_template else _QUICK
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
        offered = list(tools) if tools else None
        return template_spans(
            self._tokenizer, renderer_messages(messages), offered, rendering.ids, first
        )

    def bridge(
        self,
        prompt_ids: list[int],
        sampled_ids: list[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        *,
        reasoned: bool,
    ) -> Extension | None:
        """A prompt that begins with `prompt_ids` and `sampled_ids` and goes on with `new_messages`.

        :param reasoned: whether the tokens so far hold reasoning.
        :return: None if the renderer cannot do that exactly.
        """
        if self._by_template:
            return None
        renderer = self._renderer if reasoned else self._keeping
        try:
            bridged = renderer.bridge_to_next_turn(
                prompt_ids,
                sampled_ids,
                renderer_messages(new_messages),
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

    def drops_reasoning(self, new_messages: Sequence[ChatMessage]) -> bool:
        """Whether the family is known to take reasoning out of history when these messages follow."""
        cycle = self._renderer.effective_thinking_retention == "tool_cycle"
        return cycle and any(message.role == "user" for message in new_messages)

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
        parsed = self._try_parse(sampled_ids, prompt_ids, tools)
        if parsed is not None:
            return parsed
        # A block that breaks the parser stays visible, and so does all that follows it.
        good, bad = 0, len(sampled_ids)
        parsed = Parsed("")
        while bad - good > 1:
            middle = (good + bad) // 2
            attempt = self._try_parse(sampled_ids[:middle], prompt_ids, tools)
            if attempt is None:
                bad = middle
            else:
                good, parsed = middle, attempt
        rest = self.decode(self._without_stop(sampled_ids[good:]))
        malformed = (*parsed.malformed[:-1], "".join(parsed.malformed[-1:]) + rest)
        return replace(parsed, malformed=malformed)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""

    def _try_parse(
        self, sampled_ids: list[int], prompt_ids: list[int], tools: Sequence[ToolSpec] | None
    ) -> Parsed | None:
        if sampled_ids and sampled_ids[-1] in self._unparsed_stops:
            sampled_ids = sampled_ids[:-1]
        if self._header_end is not None and (
            self._header_end in (body := sampled_ids[self._own_header(sampled_ids) :])
        ):
            # The library would take all that stands before for a header, and drop it.
            return Parsed(self.decode(self._without_stop(body)).strip())
        try:
            response = self._renderer.parse_response(
                sampled_ids, tools=list(tools) if tools else None, prompt_ids=prompt_ids
            )
        except Exception:  # noqa: BLE001 - a model in training may sample what no parser expects
            return None
        calls: list[ParsedCall] = []
        malformed: list[str] = []
        for call in response.tool_calls:
            span = call.token_span
            raw = call.raw if span is None else self.decode(sampled_ids[span[0] : span[1]])
            if call.status == "ok" and isinstance(call.name, str) and call.name:
                calls.append(ParsedCall(call.name, call.arguments, call.id, raw))
            else:
                malformed.append(raw)
        return Parsed(
            response.content.strip(),
            (response.reasoning_content or "").strip(),
            tuple(calls),
            tuple(malformed),
            response.reasoning_complete is False,
        )

    def _own_header(self, sampled_ids: list[int]) -> int:
        """Tokens of the header of the answer's own turn, which some models write once more."""
        if self._header_end not in sampled_ids:
            return 0
        end = sampled_ids.index(self._header_end) + 1
        header = self.decode(sampled_ids[:end])
        return end if header == "<|start_header_id|>assistant<|end_header_id|>" else 0

    def _without_stop(self, token_ids: list[int]) -> list[int]:
        return [token for token in token_ids if token not in self._stops]
