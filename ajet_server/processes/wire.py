"""Calls as plain values, on their way between the processes of a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, cast

from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_server.store.codec import (
    pack_ids,
    pack_logprobs,
    pack_runs,
    pack_sampled_from,
    unpack_ids,
    unpack_logprobs,
    unpack_runs,
    unpack_sampled_from,
)

_PLAIN = (
    "call_id",
    "episode_id",
    "index",
    "temperature",
    "finish_reason",
    "shared",
    "agent",
    "created_at",
    "top_p",
    "top_k",
    "metadata",
)
_plain_values = attrgetter(*_PLAIN)
_text_values = attrgetter(*(field.name for field in fields(MessageText)))


def pack_call(call: Call) -> list[Any]:
    """Convert a call to plain values; its base becomes its id and length."""
    base = call.base
    return [
        _plain_values(call),
        pack_ids(call.suffix_ids),
        pack_ids(call.sampled_ids),
        pack_logprobs(call.logprobs),
        pack_runs(call.policy_versions),
        [(m.start, m.end, _text_values(m.text)) for m in call.messages],
        None if call.answer is None else _text_values(call.answer),
        # Tools are long, and usually those of the base.
        None if base is not None and base.tools == call.tools else call.tools,
        None if call.sampled_from is None else pack_sampled_from(call.sampled_from),
        None if base is None else (base.call_id, base.length),
    ]


def base_id(plain: list[Any]) -> str | None:
    """Return the id of a packed call's base."""
    return None if plain[9] is None else str(plain[9][0])


def unpack_call(plain: list[Any], base_of: Callable[[str, str, int], Call]) -> Call:
    """Undo `pack_call`.

    :param base_of: returns the base by its episode, id and length.
    """
    values, suffix, sampled, logprobs, versions, messages, answer, tools, sampled_from, base = plain
    named = dict(zip(_PLAIN, values, strict=True))
    based = None if base is None else base_of(named["episode_id"], *base)
    if tools is None:
        tools = "" if based is None else based.tools
    return Call(
        suffix_ids=unpack_ids(suffix),
        sampled_ids=unpack_ids(sampled),
        logprobs=unpack_logprobs(logprobs),
        policy_versions=unpack_runs(versions),
        base=based,
        messages=tuple(
            PlacedMessage(start, end, MessageText(*text)) for start, end, text in messages
        ),
        answer=None if answer is None else MessageText(*answer),
        tools=tools,
        sampled_from=None if sampled_from is None else unpack_sampled_from(sampled_from),
        **named,
    )


def stored_base(episode_id: str, call_id: str, length: int) -> Call:
    """Return a stand-in for a call that is in the store, of which only id and length are right.

    Both it and a call with the tools of its base have no tools then, which the store takes for
    the same tools.
    """
    return Call(
        call_id=call_id,
        episode_id=episode_id,
        index=-1,
        # A range has a length and takes no memory.
        suffix_ids=cast("list[int]", range(length)),
        sampled_ids=[],
        logprobs=[],
        policy_versions=[],
        temperature=1.0,
        finish_reason="stop",
    )


def without_base(call: Call) -> Call:
    """Return a call with its whole prompt."""
    return replace(
        call,
        base=None,
        shared=0,
        suffix_ids=call.prompt_ids,
        messages=tuple(call.conversation()),
    )
