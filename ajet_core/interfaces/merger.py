"""The merger: an episode's calls become one token tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from ajet_core.interfaces.context import ComponentSettings, WorkerContext
from ajet_core.timeline import Call, TokenTree

MergePolicy = Literal["exact"]


class Merger(ABC):
    """A merger. Pure: the same calls give the same tree, whatever was merged before."""

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def merge(self, episode_id: str, calls: Sequence[Call], policy: MergePolicy) -> TokenTree:
        """Merge the calls of one episode.

        Exact means: every call's prompt and sampled tokens are the tokens of one root-to-node path,
        so that training on the tree gives the logprobs and gradients of training on every call.

        :param calls: in order of `Call.index`, all of `episode_id`.
        """
