"""Messages to token ids and sampled token ids to answers, by the `renderers` library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError, RequestError
from ajet_core.protocol.run import ModelConfig
from ajet_core.server.rendering.auto import family_names, matching_renderer, public_model_name
from ajet_core.server.rendering.messages import ChatMessage, ToolSpec, renderer_messages
from ajet_core.server.rendering.tokenizer import (
    GatewayTokenizer,
    load_template_tokenizer,
    load_tokenizer,
    read_json,
    token_bytes,
)

AUTO = "auto"
DEFAULT = "default"

# Families whose parsers only ever add to text and reasoning as tokens come (a property test says so).
# A parser that may take text back, such as one that sees a tool call only in the finished JSON, gets its
# answers streamed in one piece.
_INCREMENTAL = frozenset(
    [
        "qwen3",
        "prime-qwen3",
        "qwen3-vl",
        "qwen3.5",
        "qwen3.6",
        "qwen3.8",
        "glm-4.5",
        "glm-5",
        "glm-5.1",
        "glm-5.3",
    ]
)


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
    """

    content: str
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()
    malformed: tuple[str, ...] = ()


class ChatRenderer:
    """One model's way of writing conversations.

    :param renderer: a `renderers.base.Renderer`.
    :param keeping: the same, but keeping reasoning in history, if the family has that; it extends
        conversations that hold no reasoning across new questions, where the first one would needlessly
        render again.
    :ivar stop_token_ids: each of them ends an answer.
    :ivar incremental: whether `parse` of more tokens only ever adds to what `parse` of fewer gave.
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
        stop_ids = [*renderer.get_stop_token_ids(), *extra_stop_ids]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(stop_ids))
        self._stops = frozenset(self.stop_token_ids)
        self.incremental = name in _INCREMENTAL
        self._tokens: dict[int, tuple[str, list[int]]] = {}

    def render(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None
    ) -> list[int]:
        """[P] token ids of a conversation, up to where the model's answer begins.

        :raises RequestError: the model's template cannot express the messages.
        """
        try:
            ids: list[int] = self._renderer.render_ids(
                renderer_messages(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=True,
            )
        except Exception as error:
            # Templates raise whatever they like about conversations they were not made for.
            raise RequestError(
                f"messages: renderer {self.name!r} cannot express this conversation: {error}",
                param="messages",
            ) from error
        return ids

    def bridge(
        self,
        prompt_ids: list[int],
        sampled_ids: list[int],
        new_messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        *,
        reasoned: bool,
    ) -> list[int] | None:
        """[P] token ids that begin with `prompt_ids` and `sampled_ids` and go on with `new_messages`.

        :param reasoned: whether the tokens so far hold reasoning.
        :return: None if that cannot be exact; then the conversation must be rendered anew.
        """
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
        exact = ids[:prompt] == prompt_ids and ids[prompt:known] == sampled_ids
        return ids if exact else None

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
        return Parsed(parsed.content, parsed.reasoning, parsed.calls, malformed)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""

    def token(self, token_id: int) -> tuple[str, list[int]]:
        """One token's text and its bytes, which may be a part of a character."""
        found = self._tokens.get(token_id)
        if found is None:
            text = self.decode([token_id])
            found = (text, list(token_bytes(self._tokenizer, token_id, text)))
            self._tokens[token_id] = found
        return found

    def _try_parse(
        self, sampled_ids: list[int], prompt_ids: list[int], tools: Sequence[ToolSpec] | None
    ) -> Parsed | None:
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
        )

    def _without_stop(self, token_ids: list[int]) -> list[int]:
        return [token for token in token_ids if token not in self._stops]


def renderer_names() -> list[str]:
    """The names that ``model.renderer`` may have, ``auto`` included."""
    # The library's "custom" renderer would import code named by the configuration: never offered.
    return sorted({AUTO, DEFAULT, *family_names()} - {"custom"})


def make_renderer(model: ModelConfig, directory: Path) -> ChatRenderer:
    """The renderer for a model directory. Reads files; call it off the event loop.

    ``auto`` takes the renderer that the library has for the model by name, else the one whose tokens are
    those of the directory's own chat template on some probes, else that template itself.

    :raises ConfigError: the name is unknown, or the tokenizer lacks tokens that the renderer needs.
    :raises ModelDirectoryError: the tokenizer is missing or cannot be read.
    """
    try:
        known = renderer_names()
    except ImportError as error:
        raise ConfigError(
            f"the gateway needs the package renderers ({error}): pip install 'agentjet[server]'"
        ) from error
    if model.renderer not in known:
        raise ConfigError(
            f"unknown renderer {model.renderer!r}; known are {', '.join(known)}",
            param="model.renderer",
        )
    public_name = public_model_name(directory)
    name = model.renderer
    if name == AUTO:
        name = _by_public_name(public_name) or matching_renderer(directory) or DEFAULT
    if name == DEFAULT:
        tokenizer = load_template_tokenizer(directory)
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"{directory} has no chat template, and no renderer was chosen: set model.renderer to "
                f"one of {', '.join(known)}",
                param="model.renderer",
            )
    else:
        tokenizer = load_tokenizer(directory, public_name)
    return build_renderer(name, tokenizer, extra_stop_ids=_generation_stop_ids(directory, name))


def build_renderer(
    name: str, tokenizer: GatewayTokenizer, *, extra_stop_ids: Sequence[int] = ()
) -> ChatRenderer:
    """The renderer called `name`, around `tokenizer`.

    :raises ConfigError: the tokenizer lacks tokens that the renderer needs.
    """
    from renderers import create_renderer
    from renderers.configs import config_from_name

    config = config_from_name(name)
    try:
        renderer = create_renderer(tokenizer, config)
    except Exception as error:
        # The library reports a missing token by assertion, by ValueError or by TypeError.
        raise ConfigError(
            f"renderer {name!r} does not fit the tokenizer of {tokenizer.name_or_path}: {error}; "
            "choose the renderer of the model's own family (model.renderer)",
            param="model.renderer",
        ) from error
    keeping = None
    if renderer.effective_thinking_retention == "tool_cycle":
        try:
            keeping = create_renderer(tokenizer, type(config)(thinking_retention="all"))
        except (ValueError, TypeError, NotImplementedError):
            # This family cannot keep reasoning; conversations are rendered anew at each question.
            keeping = None
    return ChatRenderer(name, renderer, tokenizer, keeping=keeping, extra_stop_ids=extra_stop_ids)


def _by_public_name(public_name: str | None) -> str | None:
    from renderers.base import MODEL_RENDERER_MAP

    name: str | None = MODEL_RENDERER_MAP.get(public_name or "")
    return name


def _generation_stop_ids(directory: Path, name: str) -> list[int]:
    """End tokens that only generation_config.json knows; typed renderers know their own."""
    if name != DEFAULT:
        return []
    ids = read_json(directory / "generation_config.json").get("eos_token_id")
    listed = ids if isinstance(ids, list) else [ids]
    return [token for token in listed if isinstance(token, int)]
