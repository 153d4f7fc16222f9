"""Find the spans of messages in a prompt."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ajet_server.gateway.rendering.template_text import template_ends

Span = tuple[int, int]
"""(start, end): offsets, in tokens, of a message's first token and after its last token."""


def attributed_spans(indices: Sequence[int], count: int, *, first: int = 0) -> list[Span]:
    """Return the spans of messages from the message index of each token.

    Every search continues where the last one ended, so that all of them together take one pass over
    the tokens.

    :param indices: index of each token's message, -1 for none; tokens of a message are adjacent.
    :param count: number of messages.
    :param first: first message whose span is requested.
    :return: [count - first] spans with ends in ascending order. A message without tokens has an
        empty span after the previous one.
    """
    starts = _found(indices, range(first, count))
    backwards = indices[::-1]
    ends = _found(backwards, range(count - 1, first - 1, -1))
    spans: list[Span] = []
    end = 0
    for message in range(first, count):
        if message in starts:
            # Some templates reorder tool results; the later message then ends where both end.
            end = max(end, len(indices) - ends[message])
            spans.append((starts[message], end))
        else:
            spans.append((end, end))
    return spans


def _found(indices: Sequence[int], messages: Iterable[int]) -> dict[int, int]:
    """Return the first position of each message that has tokens."""
    positions: dict[int, int] = {}
    at = 0
    for message in messages:
        try:
            at = indices.index(message, at)
        except ValueError:
            try:
                positions[message] = indices.index(message)
            except ValueError:
                continue
        else:
            positions[message] = at
    return positions


def template_spans(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    ids: array[int],
    first: int,
) -> list[Span]:
    """Return the spans of messages that a Jinja template wrote.

    `template_ends` gives the ends of messages in the text. If it cannot, or if the tokenizer has no
    character offsets, a message ends with the next one whose end is known, or with the prompt: too
    late, but never too early.

    :param tokenizer: a tokenizer of transformers.
    :param ids: [P] the prompt, which ends where the model's answer begins.
    :param first: first message whose span is requested.
    :return: [len(messages) - first] spans.
    """
    ends: list[int | None] = [None] * (len(messages) - first + 1)
    if first == 0:
        ends[0] = 0

    def write(part: list[dict[str, Any]], *, asking: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            part, tools=tools, add_generation_prompt=asking, tokenize=False
        )
        return text

    try:
        text = write(messages, asking=True)
        # Use the backend: calling the tokenizer itself would build four more lists.
        encoded = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        if array("I", encoded.ids) == ids:
            starts = [start for start, _ in encoded.offsets]
            for count, end in template_ends(write, messages, text, first or 1).items():
                ends[count - first] = bisect_left(starts, end)
    except Exception:  # noqa: BLE001 - tokenizers without offsets raise different exceptions
        ends = [0 if first == 0 else None, *ends[1:]]
    last = len(ids)
    known: list[int] = []
    for place in reversed(ends):
        last = last if place is None else min(last, place)
        known.append(last)
    known.reverse()
    return list(pairwise(known))
