"""Calls as plain values, on their way between the processes of a server."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_stores.codec import (
    pack_ids,
    pack_logprobs,
    pack_runs,
    pack_sampled_from,
    unpack_array,
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
    """Convert a call to plain values; its base becomes its id and length.

    Tools are long, and usually those of the base, so these are only named by their digest.
    """
    base = call.base
    same_tools = base is not None and base.tools == call.tools
    return [
        _plain_values(call),
        pack_ids(call.suffix_ids),
        pack_ids(call.sampled_ids),
        pack_logprobs(call.logprobs),
        pack_runs(call.policy_versions),
        [(m.start, m.end, _text_values(m.text)) for m in call.messages],
        None if call.answer is None else _text_values(call.answer),
        digest(call.tools) if same_tools and call.tools else call.tools,
        None if call.sampled_from is None else pack_sampled_from(call.sampled_from),
        None if base is None else (base.call_id, base.length, same_tools),
    ]


def unpack_call(
    plain: list[Any],
    base_of: Callable[[str, int], Call | None],
    tools_of: Callable[[bytes], str],
) -> Call:
    """Undo `pack_call`.

    :param base_of: returns the base by its id and length; None makes a stand-in.
    :param tools_of: returns tools by their digest.
    """
    values, suffix, sampled, logprobs, versions, messages, answer, tools, sampled_from, base = plain
    named = dict(zip(_PLAIN, values, strict=True))
    if isinstance(tools, bytes):
        tools = tools_of(tools)
    based = None
    if base is not None:
        base_id, length, same_tools = base
        based = base_of(base_id, length) or _stand_in(
            named["episode_id"], base_id, length, tools if same_tools else _OTHER_TOOLS
        )
    return Call(
        suffix_ids=unpack_array(suffix),
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


@functools.lru_cache(maxsize=256)
def digest(tools: str) -> bytes:
    """Return the digest of the text of tools."""
    return hashlib.sha256(tools.encode("utf-8", "surrogatepass")).digest()


class TokensElsewhereError(Exception):
    """A store needs the tokens of a call's base, which only another process has."""


class _TokensElsewhere(Sequence[int]):
    """Tokens of which only the number is known; reading them raises `TokensElsewhereError`."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, _: Any) -> Any:
        raise TokensElsewhereError

    def __iter__(self) -> Iterator[int]:
        raise TokensElsewhereError


# No tools have this text.
_OTHER_TOOLS = "\0"


def _stand_in(episode_id: str, call_id: str, length: int, tools: str) -> Call:
    """Return a stand-in for a call that the store should have.

    A store that has it refers to it by its id. One that has not, or that keeps whole prompts, reads
    its tokens, which raises `TokensElsewhereError`.
    """
    return Call(
        call_id=call_id,
        episode_id=episode_id,
        index=-1,
        suffix_ids=_TokensElsewhere(length),
        sampled_ids=[],
        logprobs=[],
        policy_versions=[],
        temperature=1.0,
        finish_reason="stop",
        tools=tools,
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
