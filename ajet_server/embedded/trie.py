"""Incremental construction of an episode's token tree, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ajet_core.timeline.call import Call
from ajet_core.timeline.radix import RadixTree, Run
from ajet_core.timeline.tree import Sampling, TokenNode, TokenTree
from ajet_server.embedded.relaxed import Spoken

MergePolicy = Literal["exact", "text", "ignore_tools"]
"""When a call continues an existing context:

- ``exact``: the tokens are the same.
- ``text``: the messages have the same text, whatever their tokens.
- ``ignore_tools``: likewise, and offered tools may differ.

With the relaxed policies a call may be trained in a context it was not sampled in; see `relaxed`.
"""

_REMEMBERED = 8


class TokenTrie:
    """The growing tree of one episode.

    With the policy ``exact`` the same calls give the same tree, in whatever order they were added.
    With the relaxed ones, the first call with a text decides on its tokens.

    Adding a call takes time linear in its new part: tokens shared with its base are skipped. A call
    without a base is compared with the tree from its root on; with the relaxed policies, so is one
    that does not continue from the end of its base.
    """

    def __init__(self, episode_id: str, policy: MergePolicy = "exact") -> None:
        self.episode_id = episode_id
        self.policy = policy
        self._radix = RadixTree()
        self._calls: list[Call] = []
        self._ends: dict[str, Run] = {}
        self._by_end: dict[int, Call] = {}
        self._altered = 0
        relaxed = policy != "exact"
        self._spoken = Spoken(ignore_tools=policy == "ignore_tools") if relaxed else None
        # The latest calls with a whole prompt: the next whole prompt often begins with one of them,
        # and comparing two lists is faster than traversing the tree.
        self._whole: list[Call] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Add a call.

        :raises ValueError: it belongs to another episode, or was added before.
        """
        if call.episode_id != self.episode_id:
            raise ValueError(
                f"call {call.call_id} belongs to episode {call.episode_id}, not to "
                f"{self.episode_id}"
            )
        if call.call_id in self._ends:
            raise ValueError(f"call {call.call_id} has already been added")
        if self._spoken is None:
            prompt_end = self._radix.insert(*self._begin(call))
        else:
            prompt_end = self._insert_relaxed(self._spoken, call)
        number = len(self._calls)
        end = self._radix.insert(prompt_end, call.sampled_ids, number)
        self._ends[call.call_id] = end
        self._by_end[id(end)] = call
        self._calls.append(call)

    def nearest(self, ids: Sequence[int]) -> tuple[Call | None, int]:
        """Return a call that shares the longest prefix with `ids`, and the length of the prefix.

        If there are several, choose the branch added last at each fork after the prefix. Only with
        the policy ``exact`` are the tokens in the tree those of the calls.
        """
        run, shared = self._radix.match(ids)
        if not shared:
            return None, 0
        while run.children:
            run = next(reversed(run.children.values()))
        return self._by_end[id(run)], shared

    def tree(self) -> TokenTree:
        """Return the tree so far."""
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
                tuple(Sampling(*one) for one in sorted((rank[c], s) for c, s in run.sampled)),
            )
            for run in flat
        ]
        ends = [index[id(self._ends[call.call_id])] for call in calls]
        return TokenTree(self.episode_id, nodes, calls, ends, self._altered)

    def _first_calls(self, calls: list[Call]) -> dict[int, int]:
        """Return the position of the first call that passes through each run, by ``id(run)``."""
        first: dict[int, int] = {}
        for position, call in enumerate(calls):
            run: Run | None = self._ends[call.call_id]
            while run is not None and id(run) not in first:
                first[id(run)] = position
                run = run.parent
        return first

    def _begin(self, call: Call) -> tuple[Run, list[int]]:
        """Return where the call continues in the tree, and the remaining tokens of its prompt."""
        base = call.base
        if base is None:
            place = self._after_remembered(call.suffix_ids)
            self._whole = [*self._whole[1 - _REMEMBERED :], call]
            return place, list(call.suffix_ids[place.end :])
        if base.call_id in self._ends:
            return self._radix.place(self._ends[base.call_id], call.shared), list(call.suffix_ids)
        return self._radix.root, call.prompt_ids

    def _insert_relaxed(self, spoken: Spoken, call: Call) -> Run:
        """Insert a call's prompt, possibly after other tokens than its own, and return its end."""
        words = spoken.words(call)
        same = None
        if call.base is not None and spoken.goes_on(call):
            place, rest = self._ends[call.base.call_id], list(call.suffix_ids)
        else:
            same = spoken.find(words)
            if same is not None and self._radix.match(words.ids)[1] >= same.length:
                # The tokens are the same, so nothing needs to be replaced.
                same = None
            place, rest = self._radix.root, words.ids
            if same is not None:
                place = self._radix.place(self._ends[same.place.call_id], same.place.end)
                rest = words.ids[same.length :]
                self._altered += same.altered(place.path_ids(), words.ids)
        end = self._radix.insert(place, rest)
        spoken.add(call, words, same, end.end)
        return end

    def _after_remembered(self, prompt: Sequence[int]) -> Run:
        """Return the place after the longest remembered call that begins `prompt`, or the root."""
        for call in sorted(self._whole, key=lambda call: call.length, reverse=True):
            known, end = len(call.suffix_ids), self._ends[call.call_id]
            if not known or prompt[:known] != call.suffix_ids:
                continue
            if list(prompt[known : call.length]) == call.sampled_ids:
                return end
            return self._radix.place(end, known)
        return self._radix.root
