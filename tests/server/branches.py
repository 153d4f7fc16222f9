"""A merger of a third party: its hooks, its settings and itself."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import ComponentSettings, Merger, MergerPromises
from ajet_core.plugin import MergerSpec, PluginManager, hookimpl
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.timeline import Call, Sampling, TokenNode, TokenTree
from ajet_testing.plugins import entry_points_of


@hookimpl
def ajet_register_mergers() -> Sequence[MergerSpec]:
    return (
        MergerSpec(
            name="branches",
            target="tests.server.branches:Branches",
            settings="tests.server.branches:BranchesSettings",
            summary="A branch for each call",
        ),
    )


class BranchesSettings(ComponentSettings):
    """:param window: tokens that are kept of each prompt, the last ones; None keeps all."""

    window: int | None = None


class Branches(Merger[BranchesSettings]):
    """Calls share nothing, and those with long prompts are trained after the end of them alone."""

    @property
    def promises(self) -> MergerPromises:
        """Exactness, as long as whole prompts are kept."""
        return MergerPromises(exact=self.settings.window is None)

    def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        """Make a node of each prompt and one of each answer."""
        made = sorted(calls, key=lambda call: (call.index, call.call_id))
        nodes: list[TokenNode] = []
        ends = []
        altered = 0
        for number, call in enumerate(made):
            prompt = call.prompt_ids
            first = (
                0 if self.settings.window is None else max(0, len(prompt) - self.settings.window)
            )
            altered += first
            end = -1
            if prompt[first:]:
                nodes.append(TokenNode(-1, prompt[first:]))
                end = len(nodes) - 1
            if call.sampled_ids:
                nodes.append(TokenNode(end, call.sampled_ids, (Sampling(number, 0),)))
                end = len(nodes) - 1
            ends.append(end)
        return TokenTree(episode_id, nodes, made, ends, altered)


def plugins_with_branches() -> PluginManager:
    """The installed plugins, the scripted components, and the merger ``branches``."""
    return PluginManager(
        entry_points=[
            *installed_entry_points(),
            *entry_points_of("scripted", "ajet_testing.hooks"),
            *entry_points_of("branches", __name__),
        ]
    )
