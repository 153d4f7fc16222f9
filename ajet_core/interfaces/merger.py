"""The merger: combines an episode's calls into one token tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ajet_core.interfaces.context import ComponentSettings, WorkerContext
from ajet_core.timeline import Call, MergePolicy, TokenTree

__all__ = ["MergePolicy", "Merger"]


class Merger(ABC):
    """A merger. It is pure: the same calls give the same tree, whatever was merged before."""

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def merge(self, episode_id: str, calls: Sequence[Call], policy: MergePolicy) -> TokenTree:
        """Merge the calls of one episode.

        With ``exact``, every call's prompt and sampled tokens are the tokens of one root-to-node
        path, so that training on the tree gives the logprobs and gradients of training on every
        call. Deviations from this under the relaxed policies are counted in
        `TokenTree.tokens_altered`.

        :param calls: all calls of `episode_id`. With the policy ``exact`` their order does not
            matter; the others use the order of `Call.index`, in which the first call with a text
            decides on its tokens.
        """
