"""What a prompt that was rendered as a whole has in common with the calls before it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ajet_core.timeline import Call, MessageText, PlacedMessage, TokenTrie


@dataclass(frozen=True, slots=True)
class Shared:
    """The first tokens and messages of a prompt, as an earlier call has them.

    :param base: None if there is no such call.
    :param tokens: of `base`, prompt and sampled, that the prompt begins with.
    :param messages: how many messages of the prompt stand in these tokens.
    """

    base: Call | None
    tokens: int
    messages: int


def shared_with(
    trie: TokenTrie | None,
    ids: list[int],
    said: Sequence[MessageText],
    *,
    lost: Container[str] = (),
) -> Shared:
    """The most that a prompt shares with a call of `trie`, tokens and messages alike.

    Where the tokens are the same but their messages are not (the ids of tool calls, which few templates
    write), what is shared ends before the first such message, so that the record of the prompt says what
    its request said. A message whose tokens are but the beginning of another one's ("up" of "up there", in a
    template that marks no end) is not shared, although its tokens are.

    :param ids: [P] the prompt.
    :param said: its messages.
    :param lost: ids of calls that are bases of others, but not in the store.
    """
    base, tokens = trie.nearest(ids) if trie is not None else (None, 0)
    while base is not None and tokens:
        while base.base is not None and tokens <= base.shared and base.base.call_id not in lost:
            base = base.base
        known = _messages_within(base, tokens)
        same = 0
        while same < min(len(known), len(said)) and _alike(known[same].text, said[same]):
            same += 1
        if same == len(known):
            return Shared(base, tokens, same)
        tokens = min(tokens, known[same].end) - 1
    return Shared(None, 0, 0)


def _messages_within(base: Call, tokens: int) -> list[PlacedMessage]:
    """What a call that shares these tokens with `base` takes over of its conversation."""
    probe = Call("", base.episode_id, 0, [], [], [], [], 0.0, "", base=base, shared=tokens)
    return probe.conversation()


def _alike(text: MessageText, other: MessageText) -> bool:
    """As equal keys, without hashing."""
    return (
        text.content == other.content
        and text.role == other.role
        and text.tool_calls == other.tool_calls
        and text.tool_call_id == other.tool_call_id
    )
