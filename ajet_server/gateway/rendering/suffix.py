"""Going on from a call where the renderer itself cannot: the template is asked, and must prove it."""

from __future__ import annotations

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
    prompt_ids: list[int],
    new_messages: Sequence[ChatMessage],
    tools: Sequence[ToolSpec] | None,
    *,
    asked: list[int] | None = None,
) -> Extension | None:
    """The exact tokens of `call`, closed and followed by `new_messages` as the template writes both.

    The conversation of the call, as it was recorded, is rendered twice: as it was asked (Q), and with the
    answer that was given and the new messages, asking again (N). If

    1. N begins with Q, so that what follows changes nothing before the answer, reasoning included, and the
       answer begins where the model began it; and
    2. behind Q, N goes on with the answer: what stands there before the first stop token says the same as
       what was sampled (text, reasoning, tool calls, whether the reasoning is complete), and the stop token
       is the one that was sampled;

    then N is ``Q + answer + stop + rest``, and the prompt is ``prompt + sampled + rest``: what the template
    would have written, but for the tokens within answers. A template that leaves the reasoning of the last
    answer out, does not close answers, or writes history by its length fails one of the two. If no stop token
    was sampled (an answer cut off by length or by a stop string), what stands before it in N must be the
    very text that was sampled; then the stop token is part of the rest.

    That the prompt of `call` is to Q what this prompt is to N holds by induction: it was rendered, or
    extended by a renderer's own rules or by this proof.

    :param prompt_ids: [P] of `call`.
    :param asked: Q, if it is at hand; another one is tried if N does not begin with it.
    :return: None if this cannot be proven.
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
    ids = [*prompt_ids, *call.sampled_ids, *rendering.ids[rest:]]
    return Extension(ids, _moved(spans, rest, call.length), rendering.ids)


def _behind_answer(
    renderer: ChatRenderer,
    call: Call,
    prompt_ids: list[int],
    tools: Sequence[ToolSpec] | None,
    full: list[int],
    *,
    begun: int,
) -> int | None:
    """Where in `full` the rest begins, if what stands there from `begun` on is the call's answer."""
    stops, sampled = renderer.stop_token_ids, call.sampled_ids
    stop = next((i for i in range(begun, len(full)) if full[i] in stops), None)
    if stop is None:
        return None
    if not sampled or sampled[-1] not in stops:
        same = renderer.decode(full[begun:stop]) == renderer.decode(sampled)
        return stop if same else None
    said = _meaning(renderer, sampled, prompt_ids, tools)
    written = _meaning(renderer, full[begun : stop + 1], prompt_ids, tools)
    return stop + 1 if sampled[-1] == full[stop] and said == written else None


def _moved(spans: list[Span], old: int, new: int) -> list[Span]:
    """Spans in tokens that stand at `new` instead of `old`; none reaches further back."""
    moved = [(max(start, old) + new - old, max(end, old) + new - old) for start, end in spans]
    if moved and moved[0][0] == moved[0][1]:
        # Where it was not to be told, the first one begins behind the answer.
        moved[0] = (new, moved[0][1])
    return moved


def _meaning(
    renderer: ChatRenderer,
    sampled_ids: list[int],
    prompt_ids: list[int],
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
