"""Parse sampled tokens with the parsers of the `renderers` library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ajet_server.gateway.rendering.messages import ToolSpec
from ajet_server.gateway.rendering.tagged_arguments import TAGGED_FAMILIES
from ajet_server.gateway.rendering.tokenizer import GatewayTokenizer


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call that the model wrote.

    :param arguments: a JSON object, or its JSON text.
    :param id: id of the call, if the model's format has one.
    :param raw: text of the call as it was written, including tags.
    """

    name: str
    arguments: Any
    id: str | None
    raw: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of sampled tokens.

    :param content: text outside of reasoning and tool calls, stripped of surrounding white space.
    :param reasoning: text of the reasoning, also stripped; "" if there is none.
    :param calls: well-formed tool calls.
    :param malformed: texts of malformed tool calls, including tags.
    :param open: whether the reasoning was started but not ended.
    """

    content: str
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()
    malformed: tuple[str, ...] = ()
    open: bool = False


class AnswerParser:
    """Parses a model's answers.

    :param name: name of the family whose parser is used.
    :param renderer: a `renderers.base.Renderer` with the parser.
    :param stop_token_ids: tokens that end an answer.
    """

    def __init__(
        self,
        name: str,
        renderer: Any,
        tokenizer: GatewayTokenizer,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._tagged = TAGGED_FAMILIES.get(name)
        self._stops = frozenset(stop_token_ids)
        # The library's parsers remove only the renderer's own stop tokens.
        self._unparsed_stops = self._stops - frozenset(renderer.get_stop_token_ids())
        self._header_end = (
            tokenizer.convert_tokens_to_ids("<|end_header_id|>") if name == "llama-3" else None
        )

    def parse(
        self, sampled_ids: list[int], prompt_ids: list[int], tools: Sequence[ToolSpec] | None
    ) -> Parsed:
        """Parse `sampled_ids` as an answer to `prompt_ids`; any ids can be parsed."""
        parsed = self._try_parse(sampled_ids, prompt_ids, tools)
        if parsed is not None:
            return parsed
        # A block that breaks the parser stays visible as malformed, with everything after it.
        good, bad = 0, len(sampled_ids)
        parsed = Parsed("")
        while bad - good > 1:
            middle = (good + bad) // 2
            attempt = self._try_parse(sampled_ids[:middle], prompt_ids, tools)
            if attempt is None:
                bad = middle
            else:
                good, parsed = middle, attempt
        rest = self._decode(self._without_stop(sampled_ids[good:]))
        malformed = (*parsed.malformed[:-1], "".join(parsed.malformed[-1:]) + rest)
        return replace(parsed, malformed=malformed)

    def _try_parse(
        self, sampled_ids: list[int], prompt_ids: list[int], tools: Sequence[ToolSpec] | None
    ) -> Parsed | None:
        if sampled_ids and sampled_ids[-1] in self._unparsed_stops:
            sampled_ids = sampled_ids[:-1]
        if self._header_end is not None and (
            self._header_end in (body := sampled_ids[self._own_header(sampled_ids) :])
        ):
            # The library would drop everything before it as a header.
            return Parsed(self._decode(self._without_stop(body)).strip())
        try:
            response = self._renderer.parse_response(
                sampled_ids, tools=list(tools) if tools else None, prompt_ids=prompt_ids
            )
        except Exception:  # noqa: BLE001 - a model in training may sample what no parser expects
            return None
        calls: list[ParsedCall] = []
        malformed: list[str] = []
        for call in self._calls(response.tool_calls, sampled_ids, tools):
            if isinstance(call, ParsedCall):
                calls.append(call)
            else:
                malformed.append(call)
        return Parsed(
            response.content.strip(),
            (response.reasoning_content or "").strip(),
            tuple(calls),
            tuple(malformed),
            response.reasoning_complete is False,
        )

    def _calls(
        self, attempts: Sequence[Any], sampled_ids: list[int], tools: Sequence[ToolSpec] | None
    ) -> Iterator[ParsedCall | str]:
        """Yield calls, and the texts of malformed ones.

        :param attempts: `renderers.base.ParsedToolCall` objects; those of one block are adjacent.
        """
        for span, block in groupby(attempts, key=lambda attempt: attempt.token_span):
            same = list(block)
            raw = same[0].raw if span is None else self._decode(sampled_ids[span[0] : span[1]])
            if self._tagged is not None and same[0].status in ("ok", "invalid_json"):
                # The library strips arguments, and reports strings without a schema as invalid.
                try:
                    read = self._tagged.read(same[0].name, same[0].raw, tools)
                except ValueError:
                    yield raw
                else:
                    yield from (ParsedCall(name, values, None, raw) for name, values in read)
                continue
            for attempt in same:
                if attempt.status == "ok" and isinstance(attempt.name, str) and attempt.name:
                    yield ParsedCall(attempt.name, attempt.arguments, attempt.id, raw)
                else:
                    yield raw

    def _own_header(self, sampled_ids: list[int]) -> int:
        """Return the length of the answer's own turn header, which some models write again."""
        if self._header_end not in sampled_ids:
            return 0
        end = sampled_ids.index(self._header_end) + 1
        header = self._decode(sampled_ids[:end])
        return end if header == "<|start_header_id|>assistant<|end_header_id|>" else 0

    def _without_stop(self, token_ids: list[int]) -> list[int]:
        return [token for token in token_ids if token not in self._stops]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""
