"""The token tree of an episode, which stores every distinct context once."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_core.timeline.call import Call


@dataclass(frozen=True, slots=True)
class Sampling:
    """A call that sampled the tokens of a node.

    :param call: index into `TokenTree.calls`.
    :param start: offset of the node's first token in `Call.sampled_ids`.
    """

    call: int
    start: int


@dataclass(frozen=True, slots=True)
class TokenNode:
    """A run of N tokens without a branch, sampled by the same calls or by none.

    Behaviour logprobs and policy versions are in the calls, which may have other weights.

    :param parent: index in `TokenTree.nodes` of the node that it continues, -1 for a root.
    :param token_ids: [N], N >= 1.
    :param samplings: in the order of their calls; empty for context.
    """

    parent: int
    token_ids: list[int]
    samplings: tuple[Sampling, ...] = ()

    @property
    def sampled(self) -> bool:
        """Whether a call sampled these tokens."""
        return bool(self.samplings)


@dataclass(frozen=True, slots=True)
class TokenTree:
    """All calls of one episode, merged into one tree. Parents precede their children in `nodes`.

    :param calls: calls in the order of their index.
    :param ends: [len(calls)] index of the node at whose last token each call ends: its last sampled
        token, or the end of its prompt if it sampled none; -1 for a call without tokens.
    :param tokens_altered: context tokens that the merger changed; 0 if and only if every call
        follows exactly the tokens of its own prompt. Where a call first continues other tokens than
        its own, each message before that place, with the template's text before it, is compared
        with the tree: what is left without the common prefix and suffix counts, on the longer side.
        Calls that continue this call do not count again.
    """

    episode_id: str
    nodes: list[TokenNode]
    calls: list[Call]
    ends: list[int]
    tokens_altered: int = 0

    @property
    def tokens_raw(self) -> int:
        """Number of tokens of all calls if each is a separate sample (prompt + sampled, summed)."""
        return sum(call.length for call in self.calls)

    @property
    def tokens(self) -> int:
        """Number of tokens of the tree."""
        return sum(len(node.token_ids) for node in self.nodes)

    @property
    def tokens_sampled(self) -> int:
        """Number of sampled tokens of the tree; those sampled by two calls count once."""
        return sum(len(node.token_ids) for node in self.nodes if node.sampled)

    def leaves(self) -> list[int]:
        """Return the indices of nodes without children, in order."""
        parents = {node.parent for node in self.nodes}
        return [i for i in range(len(self.nodes)) if i not in parents]

    def path(self, node: int) -> list[int]:
        """Return the node indices from the root to `node`; empty for -1."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.nodes[node].parent
        path.reverse()
        return path

    def path_ids(self, node: int) -> list[int]:
        """Return the token ids from the root to the end of `node`."""
        return [token for i in self.path(node) for token in self.nodes[i].token_ids]
