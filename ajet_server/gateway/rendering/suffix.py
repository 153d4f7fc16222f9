"""Extend a call's tokens if the renderer has no rules for it: two renderings must prove how."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ajet_core.errors import RequestError
from ajet_core.timeline import Call
from ajet_server.gateway.rendering.canonical import canonical_arguments, kept_message
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec, as_json
from ajet_server.gateway.rendering.parsing import ParsedCall
from ajet_server.gateway.rendering.placing import Span
from ajet_server.gateway.rendering.renderer import ChatRenderer, Extension


def extended_by_proof(
    renderer: ChatRenderer,
    call: Call,
    prompt_ids: array[int],
    new_messages: Sequence[ChatMessage],
    tools: Sequence[ToolSpec] | None,
    *,
    asked: array[int] | None = None,
) -> Extension | None:
    """Extend the exact tokens of `call` by `new_messages`, as the template writes them.

    The recorded conversation of the call is rendered twice: up to the call's question (Q), and with
    the call's answer and the new messages, up to the next answer (N). If

    1. N begins with Q, so that the new messages change nothing before the answer, including
       reasoning, and the answer begins where the model began it; and
    2. after Q, N continues with the answer: the tokens before the first stop token parse to the
       same answer as the sampled ones (text, reasoning, tool calls, whether the reasoning is
       complete), and the stop token is the sampled one;

    then N is ``Q + answer + stop + rest``, and the prompt is ``prompt + sampled + rest``: the
    template's rendering except for the tokens of answers. A template that drops the reasoning of
    the last answer, does not close answers, or renders history depending on its length fails one of
    the conditions. If no stop token was sampled, because a length limit or a stop string ended the
    answer, the text before the stop token in N must equal the sampled text; the stop token is then
    part of the rest.

    By induction, the prompt of `call` corresponds to Q as this prompt corresponds to N: it was
    rendered, or extended by a renderer's own rules or by this proof.

    :param prompt_ids: [P] prompt of `call`.
    :param asked: Q, if available; Q is rendered if N does not begin with it.
    :return: None if the extension cannot be proven.
    """
    if call.answer is None:
        return None
    known = [kept_message(message.text) for message in call.conversation()]
    messages = [*known, kept_message(call.answer), *new_messages]
    try:
        rendering = renderer.render(messages, tools)
        if asked is None or rendering.ids[: len(asked)] != asked:
            asked = renderer.render(known, tools).ids
    except RequestError:
        return None
    if rendering.ids[: len(asked)] != asked:
        return None
    rest = _behind_answer(renderer, call, prompt_ids, tools, rendering.ids, begun=len(asked))
    if rest is None:
        return None
    first = len(messages) - len(new_messages)
    spans = renderer.spans(rendering, messages, tools, first)
    ids = prompt_ids + array("I", call.sampled_ids) + rendering.ids[rest:]
    return Extension(ids, _moved(spans, rest, call.length), rendering.ids)


def _behind_answer(
    renderer: ChatRenderer,
    call: Call,
    prompt_ids: array[int],
    tools: Sequence[ToolSpec] | None,
    full: array[int],
    *,
    begun: int,
) -> int | None:
    """Return where the rest begins in `full`, None if the call's answer is not at `begun`."""
    stops, sampled = renderer.stop_token_ids, call.sampled_ids
    stop = next((i for i in range(begun, len(full)) if full[i] in stops), None)
    if stop is None:
        return None
    if not sampled or sampled[-1] not in stops:
        same = renderer.decode(full[begun:stop]) == renderer.decode(sampled)
        return stop if same else None
    said = _meaning(renderer, sampled, prompt_ids, tools)
    written = _meaning(renderer, full[begun : stop + 1].tolist(), prompt_ids, tools)
    return stop + 1 if sampled[-1] == full[stop] and said == written else None


def _moved(spans: list[Span], old: int, new: int) -> list[Span]:
    """Return spans shifted from `old` to `new`, and cut off before it."""
    moved = [(max(start, old) + new - old, max(end, old) + new - old) for start, end in spans]
    if moved and moved[0][0] == moved[0][1]:
        # If the start of the first message is unknown, it begins after the answer.
        moved[0] = (new, moved[0][1])
    return moved


def _meaning(
    renderer: ChatRenderer,
    sampled_ids: list[int],
    prompt_ids: array[int],
    tools: Sequence[ToolSpec] | None,
) -> tuple[object, ...]:
    parsed = renderer.parse(sampled_ids, prompt_ids, tools)
    calls = tuple((call.name, _arguments(call)) for call in parsed.calls)
    return parsed.content, parsed.reasoning, calls, parsed.malformed, parsed.open


def _arguments(call: ParsedCall) -> str:
    if isinstance(call.arguments, str):
        return canonical_arguments(call.arguments)
    try:
        return canonical_arguments(as_json(call.arguments))
    except (ValueError, RecursionError):
        return call.raw
