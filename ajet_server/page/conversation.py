"""The messages of an episode, also while it is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ajet_core.interfaces import EpisodeRecord
from ajet_core.timeline import Call
from ajet_server.gateway.cut_messages import CutMessage, cut_message
from ajet_server.page.episode_rows import episode_row
from ajet_server.page.models import Conversation, SaidCall, SaidMessage


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    """How much of a conversation is shown.

    :param calls: the last ones.
    :param chars: of each content, reasoning and tool call: half of it are the first, half the last.
    :param total_chars: of all calls but the last, which is always shown.
    """

    calls: int = 200
    chars: int = 20_000
    total_chars: int = 2_000_000


_OF_THE_PAGE = ConversationLimits()


def conversation(
    record: EpisodeRecord, calls: Sequence[Call], limits: ConversationLimits = _OF_THE_PAGE
) -> Conversation:
    """Return what was said in the last calls of an episode, as many as a page can show."""
    shown: list[SaidCall] = []
    size = 0
    for call in reversed(calls[-limits.calls :]):
        said = _call(call, limits.chars)
        size += sum(map(_size, said.messages)) + (_size(said.answer) if said.answer else 0)
        if shown and size > limits.total_chars:
            break
        shown.append(said)
    return Conversation(
        episode=episode_row(record), calls=shown[::-1], omitted=len(calls) - len(shown)
    )


def _size(message: SaidMessage) -> int:
    return len(message.content) + len(message.reasoning) + len(message.tool_calls)


def _call(call: Call, chars: int) -> SaidCall:
    return SaidCall(
        call_id=call.call_id,
        agent=call.agent,
        messages=[said_message(cut_message(placed.text, chars)) for placed in call.messages],
        answer=None if call.answer is None else said_message(cut_message(call.answer, chars)),
        finish_reason=call.finish_reason,
        tokens=len(call.sampled_ids),
        at=call.created_at,
    )


def said_message(message: CutMessage) -> SaidMessage:
    """Return a message as the page gets it."""
    text = message.text
    return SaidMessage(
        role=text.role,
        content=text.content,
        reasoning=text.reasoning,
        tool_calls=text.tool_calls,
        name=text.name,
        cut=message.cut,
    )
