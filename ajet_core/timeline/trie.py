"""Calls enter an episode's token tree one by one, as they arrive."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ajet_core.timeline.call import Call
from ajet_core.timeline.message import MessageText
from ajet_core.timeline.radix import RadixTree, Run
from ajet_core.timeline.tree import Sampling, TokenNode, TokenTree

MergePolicy = Literal["exact", "text", "ignore_tools"]
"""When a call goes on in a context that is there:

- ``exact``: the tokens are the same.
- ``text``: the messages say the same, whatever their tokens.
- ``ignore_tools``: likewise, and the tools that are offered do not matter either.

With the relaxed policies a call may be trained in a context it was not sampled in.
"""

_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class _Spoken:
    """Where a conversation stands in the tree.

    :param call_id: a call it is part of.
    :param spans: start and end of its messages, in tokens from the root on the way to that call's end.
    """

    call_id: str
    spans: list[tuple[int, int]]


class TokenTrie:
    """The growing tree of one episode.

    A call takes time linear in what is new in it: the tokens it shares with its base are not looked at. A
    call without a base is compared with the tree from its root on.
    """

    def __init__(self, episode_id: str, policy: MergePolicy = "exact") -> None:
        self.episode_id = episode_id
        self.policy = policy
        self._radix = RadixTree()
        self._calls: list[Call] = []
        self._ends: dict[str, Run] = {}
        self._by_end: dict[int, Call] = {}
        self._altered = 0
        self._spoken: dict[bytes, _Spoken] = {}
        # The latest calls that came with a whole prompt: the next whole prompt often begins with one of
        # them, which a comparison of two lists finds faster than a walk through the tree.
        self._whole: list[Call] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Take up a call.

        :raises ValueError: it is of another episode, or was added before.
        """
        if call.episode_id != self.episode_id:
            raise ValueError(
                f"call {call.call_id} is of episode {call.episode_id}, not of {self.episode_id}"
            )
        if call.call_id in self._ends:
            raise ValueError(f"call {call.call_id} was added before")
        relaxed = None if self.policy == "exact" else _Relaxed.of(call, self.policy)
        place, rest = self._begin(call, relaxed)
        number = len(self._calls)
        prompt_end = self._radix.insert(place, rest)
        end = self._radix.insert(prompt_end, call.sampled_ids, number)
        self._ends[call.call_id] = end
        self._by_end[id(end)] = call
        self._calls.append(call)
        if relaxed is not None:
            self._remember(call, relaxed, prompt_end.end)

    def nearest(self, ids: Sequence[int]) -> tuple[Call | None, int]:
        """The call that `ids` share the most first tokens with, the latest of several, and how many.

        Only with the policy ``exact`` are the tokens in the tree those of the calls.
        """
        run, shared = self._radix.match(ids)
        if not shared:
            return None, 0
        while run.children:
            run = next(reversed(run.children.values()))
        return self._by_end[id(run)], shared

    def tree(self) -> TokenTree:
        """The tree so far."""
        order = sorted(
            range(len(self._calls)), key=lambda i: (self._calls[i].index, self._calls[i].call_id)
        )
        rank = {number: position for position, number in enumerate(order)}
        calls = [self._calls[number] for number in order]
        first = self._first_calls(calls)
        flat, index = self._radix.flat(lambda run: first[id(run)])
        nodes = [
            TokenNode(
                run.parent,
                run.ids,
                tuple(sorted((Sampling(rank[c], s) for c, s in run.sampled), key=_by_call)),
            )
            for run in flat
        ]
        ends = [index[id(self._ends[call.call_id])] for call in calls]
        return TokenTree(self.episode_id, nodes, calls, ends, self._altered)

    def _first_calls(self, calls: list[Call]) -> dict[int, int]:
        """By ``id(run)``, the position of the first call that passes through each run."""
        first: dict[int, int] = {}
        for position, call in enumerate(calls):
            run: Run | None = self._ends[call.call_id]
            while run is not None and id(run) not in first:
                first[id(run)] = position
                run = run.parent
        return first

    def _begin(self, call: Call, relaxed: _Relaxed | None) -> tuple[Run, list[int]]:
        """Where the call goes on in the tree, and the tokens of its prompt that follow."""
        base = call.base
        if base is not None and base.call_id in self._ends:
            end = self._ends[base.call_id]
            # After a relaxed merge the base may stand at another depth than its own tokens say.
            if end.end == base.length and (relaxed is None or call.shared == base.length):
                return self._radix.place(end, call.shared), call.suffix_ids
            if call.shared == base.length:
                return end, call.suffix_ids
        whole = call.prompt_ids if base is not None else call.suffix_ids
        if relaxed is not None and (found := self._same_text(whole, relaxed)) is not None:
            return found
        if base is None:
            place = self._after_remembered(whole)
            self._whole = [*self._whole[1 - _REMEMBERED :], call]
            return place, whole[place.end :]
        return self._radix.root, whole

    def _after_remembered(self, prompt: list[int]) -> Run:
        """The place behind the longest remembered call that `prompt` begins with, or the root."""
        for call in sorted(self._whole, key=lambda call: call.length, reverse=True):
            known, end = len(call.suffix_ids), self._ends[call.call_id]
            # After a relaxed merge a call may stand at another depth than its own tokens say.
            if not known or end.end != call.length or prompt[:known] != call.suffix_ids:
                continue
            if prompt[known : call.length] == call.sampled_ids:
                return end
            return self._radix.place(end, known)
        return self._radix.root

    def _same_text(self, whole: list[int], relaxed: _Relaxed) -> tuple[Run, list[int]] | None:
        """The place behind the most messages that say the same as the call's first ones."""
        for count in range(len(relaxed.keys), 0, -1):
            spoken = self._spoken.get(relaxed.keys[count - 1])
            if spoken is not None:
                end = self._ends[spoken.call_id]
                place = self._radix.place(end, spoken.spans[-1][1])
                own = relaxed.spans[:count]
                self._altered += _altered(place.path_ids(), spoken.spans, whole, own)
                return place, whole[own[-1][1] :]
        return None

    def _remember(self, call: Call, relaxed: _Relaxed, prompt_depth: int) -> None:
        """Note where each part of the call's conversation, its answer included, stands in the tree."""
        # Behind what was replaced, places in the tree and in the prompt differ by the same number.
        shift = prompt_depth - call.prompt_length
        spans: list[tuple[int, int]] = []
        for key, (start, end) in zip(relaxed.keys, relaxed.spans, strict=True):
            known = self._spoken.get(key)
            if known is None:
                spans = [*spans, (start + shift, end + shift)]
                self._spoken[key] = _Spoken(call.call_id, spans)
            else:
                spans = known.spans
        # A cut-off answer lacks the tokens that close it.
        if call.answer is not None and call.finish_reason == "stop":
            key = relaxed.after(call.answer)
            spans = [*spans, (prompt_depth, prompt_depth + len(call.sampled_ids))]
            self._spoken.setdefault(key, _Spoken(call.call_id, spans))


@dataclass(frozen=True, slots=True)
class _Relaxed:
    """A call's conversation for text-level merging.

    :param tools: digest of the tools that matter.
    :param keys: digest of all that was said up to and including each message.
    :param spans: where in the prompt each message starts and ends.
    """

    tools: bytes
    keys: list[bytes]
    spans: list[tuple[int, int]]

    @classmethod
    def of(cls, call: Call, policy: MergePolicy) -> _Relaxed:
        messages = call.conversation()
        tools = MessageText("tools", call.tools if policy == "text" else "").key
        keys: list[bytes] = []
        for message in messages:
            keys.append(_chained(keys[-1] if keys else tools, message.text))
        return cls(tools, keys, [(message.start, message.end) for message in messages])

    def after(self, answer: MessageText) -> bytes:
        """The key of the conversation with its answer."""
        return _chained(self.keys[-1] if self.keys else self.tools, answer)


def _chained(key: bytes, text: MessageText) -> bytes:
    return hashlib.sha256(key + text.key).digest()


def _altered(
    known: list[int],
    known_spans: list[tuple[int, int]],
    own: list[int],
    own_spans: list[tuple[int, int]],
) -> int:
    """Tokens of the call's own messages that are written otherwise in the tree.

    An answer stands there without the header of its role, so that the ends of both are compared.
    """
    altered = 0
    for (known_start, known_end), (own_start, own_end) in zip(known_spans, own_spans, strict=True):
        size = min(known_end - known_start, own_end - own_start)
        if known[known_end - size : known_end] != own[own_end - size : own_end]:
            altered += own_end - own_start
    return altered


def _by_call(sampling: Sampling) -> tuple[int, int]:
    return sampling.call, sampling.start
