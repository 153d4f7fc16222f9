"""Conversations to build trees of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from ajet_core.timeline import Call, MessageText, PlacedMessage, TokenTree
from ajet_server.embedded.trie import MergePolicy, TokenTrie
from ajet_testing.suites.samples import make_call

# Few different tokens, so that branches meet again by chance.
TOKENS = st.lists(st.integers(0, 2), max_size=4)


@st.composite
def episodes(draw: st.DrawFn, episode_id: str = "episode") -> list[Call]:
    """Calls that extend, fork, repeat and rewrite each other, held whole or as what is new."""
    calls: list[Call] = []
    for index in range(draw(st.integers(0, 9))):
        before = draw(st.none() | st.sampled_from(calls)) if calls else None
        prompt: list[int] = []
        if before is not None:
            cut = draw(st.just(before.length) | st.integers(0, before.length))
            prompt = before.token_ids[:cut]
        prompt = prompt + draw(TOKENS)
        held = draw(st.sampled_from([None, before]))
        calls.append(
            make_call(
                f"{episode_id}-{index}",
                prompt,
                draw(TOKENS),
                episode_id=episode_id,
                index=index,
                parent=held,
            )
        )
    return calls


def tree_of(calls: Sequence[Call], policy: MergePolicy = "exact") -> TokenTree:
    """The tree of `calls`, added in their order."""
    trie = TokenTrie(calls[0].episode_id if calls else "episode", policy)
    for call in calls:
        trie.add(call)
    return trie.tree()


def spoken(
    call_id: str,
    index: int,
    parts: Sequence[tuple[str, str, list[int]]],
    answer: tuple[str, list[int]],
    *,
    base: Call | None = None,
    tools: str = "",
    reasoning: str = "",
) -> Call:
    """A call with a prompt of `parts`; token 99 is the header of the answer.

    :param parts: role, content and tokens of each message.
    :param answer: content and sampled tokens.
    """
    prompt: list[int] = []
    placed = []
    for role, content, ids in parts:
        placed.append(
            PlacedMessage(len(prompt), len(prompt) + len(ids), MessageText(role, content))
        )
        prompt += ids
    call = make_call(call_id, [*prompt, 99], answer[1], index=index, parent=base)
    own = [message for message in placed if message.end > call.shared]
    return replace(
        call,
        messages=tuple(own),
        answer=MessageText("assistant", answer[0], reasoning),
        tools=tools,
    )
