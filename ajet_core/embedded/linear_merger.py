"""Exact merging into chains: a call that goes on where another ended becomes one sequence with it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ajet_core.interfaces import MergePolicy, Merger
from ajet_core.timeline import Call, TokenNode, TokenTree


@dataclass(frozen=True, slots=True, eq=False)
class _Tip:
    """The end of a chain: the tokens of its last call are those of the whole chain.

    :param node: its last node, -1 if it has none.
    :param length: tokens of the chain.
    :param checksum: CRC-32 of them, see `_checksum`.
    """

    call: Call
    node: int
    length: int
    checksum: int

    def begins(self, prompt_ids: list[int]) -> bool:
        """Whether `prompt_ids` starts with all tokens of the chain."""
        prompt = len(self.call.prompt_ids)
        return (
            prompt_ids[:prompt] == self.call.prompt_ids
            and prompt_ids[prompt : self.length] == self.call.sampled_ids
        )


class _Tips:
    """The ends of all chains, found by the call they end with or by their tokens."""

    def __init__(self) -> None:
        self._by_call: dict[str, _Tip] = {}
        # Length, then checksum: the prefixes of a prompt are looked up in one pass over its tokens.
        self._by_tokens: dict[int, dict[int, list[_Tip]]] = {}

    def add(self, tip: _Tip) -> None:
        self._by_call[tip.call.call_id] = tip
        self._by_tokens.setdefault(tip.length, {}).setdefault(tip.checksum, []).append(tip)

    def take(self, call: Call) -> _Tip | None:
        """Remove and return the tip that `call` extends: its parent's, else the longest."""
        tip = self._by_call.get(call.parent_call_id) if call.parent_call_id is not None else None
        if tip is None or not tip.begins(call.prompt_ids):
            tip = self._longest(call.prompt_ids)
        if tip is not None:
            self._remove(tip)
        return tip

    def _longest(self, prompt_ids: list[int]) -> _Tip | None:
        lengths = sorted(length for length in self._by_tokens if length <= len(prompt_ids))
        found: list[_Tip] = []
        checksum = start = 0
        for length in lengths:
            checksum = _checksum(prompt_ids[start:length], checksum)
            start = length
            found += self._by_tokens[length].get(checksum, ())
        # Tips of one length stand in the order of their calls, so ties go to the earliest.
        found.sort(key=lambda tip: -tip.length)
        return next((tip for tip in found if tip.begins(prompt_ids)), None)

    def _remove(self, tip: _Tip) -> None:
        del self._by_call[tip.call.call_id]
        same_length = self._by_tokens[tip.length]
        same_length[tip.checksum].remove(tip)
        if not same_length[tip.checksum]:
            del same_length[tip.checksum]
        if not same_length:
            del self._by_tokens[tip.length]


def _checksum(token_ids: list[int], before: int) -> int:
    """CRC-32 of the tokens, going on from the checksum of those before them."""
    return zlib.crc32(struct.pack(f"<{len(token_ids)}Q", *token_ids), before)


class LinearMerger(Merger):
    """The merger ``linear``.

    A call whose prompt starts with all tokens of a chain extends it, if that chain is its parent's or the
    longest such chain; any other call starts a chain of its own. So several completions of one
    prompt are chains of their own, and a chain never branches.

    Time is linear in the tokens of the calls, as each is compared once with the chain it extends.
    """

    def merge(
        self,
        episode_id: str,
        calls: Sequence[Call],
        policy: MergePolicy,  # noqa: ARG002
    ) -> TokenTree:
        """Merge the calls of one episode; "exact" is the only policy there is.

        :raises ValueError: a call is of another episode.
        """
        nodes: list[TokenNode] = []
        tips = _Tips()
        for call in calls:
            if call.episode_id != episode_id:
                raise ValueError(
                    f"call {call.call_id} is of episode {call.episode_id}, not of {episode_id}"
                )
            tip = tips.take(call)
            start, checksum, parent = (tip.length, tip.checksum, tip.node) if tip else (0, 0, -1)
            context = call.prompt_ids[start:]
            if context:
                nodes.append(TokenNode(parent, context, sampled=False))
                parent = len(nodes) - 1
            if call.sampled_ids:
                nodes.append(_sampled_node(parent, call))
                parent = len(nodes) - 1
            checksum = _checksum(call.sampled_ids, _checksum(context, checksum))
            length = start + len(context) + len(call.sampled_ids)
            tips.add(_Tip(call, parent, length, checksum))
        return TokenTree(
            episode_id=episode_id,
            nodes=nodes,
            tokens_raw=sum(len(c.prompt_ids) + len(c.sampled_ids) for c in calls),
        )


def _sampled_node(parent: int, call: Call) -> TokenNode:
    return TokenNode(
        parent=parent,
        token_ids=list(call.sampled_ids),
        sampled=True,
        logprobs=list(call.logprobs),
        policy_versions=list(call.policy_versions),
        temperature=call.temperature,
        calls=(call.call_id,),
        agent=call.agent,
    )
