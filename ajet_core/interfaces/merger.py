"""The merger: combines an episode's calls into one token tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from ajet_core.interfaces.context import SettingsT_co, WorkerContext
from ajet_core.timeline import Call, TokenTree

__all__ = ["Merger", "MergerPromises"]


@dataclass(frozen=True, slots=True)
class MergerPromises:
    """Properties of a merger's trees, besides those that `Merger.merge` requires of all.

    :param exact: every call's prompt and sampled tokens are the tokens of one root-to-node path, so
        that training on the tree gives the logprobs and gradients of training on every call.
    :param shares: each shared prefix is in the tree once.
    """

    exact: bool = False
    shares: bool = False


class Merger(Generic[SettingsT_co], ABC):
    """A merger. It is pure: the same calls give the same tree in any process, at any time.

    The server makes one with the settings of the run. The trainer trains its trees, and
    ``GET /v1/timelines``, ``ajet inspect`` and ``ajet export`` show them.
    """

    def __init__(self, settings: SettingsT_co, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @property
    def promises(self) -> MergerPromises:
        """Properties of its trees with its settings; the test suite checks them."""
        return MergerPromises()

    @abstractmethod
    def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        """Merge the calls of one episode.

        The tree contains all calls. The path to the end of a call ends with the tokens that the
        call sampled, each of them once. `TokenTree.tokens_altered` counts the tokens before them
        that differ from the call's prompt.

        :param calls: calls of `episode_id`, not always all of them. Their order does not matter:
            `Call.index` says in which order they were made.
        """
