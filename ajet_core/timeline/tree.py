"""The token tree of an episode: every distinct context once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenNode:
    """A run of tokens that is either context throughout or sampled throughout.

    With N tokens in the node:

    :param parent: index of the node it continues in `TokenTree.nodes`, -1 for a root.
    :param token_ids: [N], N >= 1.
    :param sampled: whether the model sampled these tokens.
    :param logprobs: [N] behaviour logprobs; empty for context.
    :param policy_versions: [N] version of the weights that sampled each token; empty for context.
    :param temperature: sampling temperature; 1.0 for context.
    :param calls: ids of the calls that sampled these tokens; empty for context.
    :param agent: name of the agent that sampled them, "" if unknown.
    """

    parent: int
    token_ids: list[int]
    sampled: bool
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)
    temperature: float = 1.0
    calls: tuple[str, ...] = ()
    agent: str = ""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """All calls of one episode. A parent stands before its children in `nodes`.

    :param tokens_raw: tokens the calls hold when each is a sample of its own (prompt + sampled, summed).
    :param tokens_altered: tokens a relaxed merge policy changed; 0 for exact merging.
    """

    episode_id: str
    nodes: list[TokenNode]
    tokens_raw: int
    tokens_altered: int = 0

    @property
    def tokens(self) -> int:
        """Tokens the tree holds."""
        return sum(len(node.token_ids) for node in self.nodes)

    @property
    def tokens_sampled(self) -> int:
        """Sampled tokens the tree holds."""
        return sum(len(node.token_ids) for node in self.nodes if node.sampled)

    def leaves(self) -> list[int]:
        """Indices of the nodes without children, in order."""
        parents = {node.parent for node in self.nodes}
        return [i for i in range(len(self.nodes)) if i not in parents]

    def path(self, leaf: int) -> list[int]:
        """Node indices from the root to `leaf`."""
        found = list(self._ancestors(leaf))
        found.reverse()
        return found

    def _ancestors(self, index: int) -> Iterator[int]:
        while index >= 0:
            yield index
            index = self.nodes[index].parent
