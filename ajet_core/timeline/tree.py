"""The token tree of an episode: every distinct context once."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_core.timeline.call import Call


@dataclass(frozen=True, slots=True)
class Sampling:
    """A call that sampled the tokens of a node.

    :param call: index into `TokenTree.calls`.
    :param start: of the node's first token in `Call.sampled_ids`.
    """

    call: int
    start: int


@dataclass(frozen=True, slots=True)
class TokenNode:
    """A run of N tokens without a branch that the same calls sampled, or none did.

    Their behaviour logprobs and policy versions are in the calls, since two calls that sampled the same
    tokens may have done so with different weights.

    :param parent: index of the node it continues in `TokenTree.nodes`, -1 for a root.
    :param token_ids: [N], N >= 1.
    :param samplings: in order of their calls; none for context.
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
    """All calls of one episode. A parent stands before its children in `nodes`.

    With the policy ``exact`` the same calls give the same tree, in whatever order they were added. With the
    relaxed ones the first call to say something decides on its tokens.

    :param calls: in order of their index.
    :param ends: [len(calls)] the node in which each call ends; -1 for a call without a token.
    :param tokens_altered: what a relaxed policy changed in the contexts of calls; 0 if and only if each call
        stands behind the very tokens of its own prompt. Counted for each call that goes on in other tokens than
        its own, up to the place where it does: message by message (with what the template writes before it),
        the tokens between those that both begin and end with, in the prompt or in the tree, whichever are more.
        Calls that go on from such a call stand behind the same tokens and are not counted again.
    """

    episode_id: str
    nodes: list[TokenNode]
    calls: list[Call]
    ends: list[int]
    tokens_altered: int = 0

    @property
    def tokens_raw(self) -> int:
        """Tokens the calls hold when each is a sample of its own (prompt + sampled, summed)."""
        return sum(call.length for call in self.calls)

    @property
    def tokens(self) -> int:
        """Tokens the tree holds."""
        return sum(len(node.token_ids) for node in self.nodes)

    @property
    def tokens_sampled(self) -> int:
        """Sampled tokens the tree holds; those that two calls sampled count once."""
        return sum(len(node.token_ids) for node in self.nodes if node.sampled)

    def leaves(self) -> list[int]:
        """Indices of the nodes without children, in order."""
        parents = {node.parent for node in self.nodes}
        return [i for i in range(len(self.nodes)) if i not in parents]

    def path(self, node: int) -> list[int]:
        """Node indices from the root to `node`; empty for -1."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.nodes[node].parent
        found.reverse()
        return found

    def path_ids(self, node: int) -> list[int]:
        """Token ids from the root to the end of `node`."""
        return [token for i in self.path(node) for token in self.nodes[i].token_ids]
