"""The hook specifications of agentjet, and nothing else.

A plugin is a light module behind an entry point of the group ``agentjet`` that implements any of these
with `ajet_core.plugin.hookimpl`. Registering hooks are called once, when the plugin is loaded;
observers are called from the server's event loop and must return quickly. Tokens and batches never
travel through hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from ajet_core.interfaces import EpisodeRecord
    from ajet_core.plugin.components import (
        AgentSpec,
        CommandSpec,
        EngineSpec,
        LoggerSpec,
        MergerSpec,
        StoreSpec,
        TrainerSpec,
        WorldSpec,
    )
    from ajet_core.protocol import ServerState, StepSummary

HOOK_NAMESPACE = "agentjet"

hookspec = pluggy.HookspecMarker(HOOK_NAMESPACE)
hookimpl = pluggy.HookimplMarker(HOOK_NAMESPACE)


@hookspec
def ajet_register_engines() -> Sequence[EngineSpec]:  # type: ignore[empty-body]
    """Name the inference engines this plugin provides.

    Called once, when the plugin is loaded; nothing heavy may be imported here.

    :return: specs with unique names; a duplicate name raises PluginConflictError when it is used.
    """


@hookspec
def ajet_register_trainers() -> Sequence[TrainerSpec]:  # type: ignore[empty-body]
    """Name the trainers this plugin provides.

    Called once, when the plugin is loaded; nothing heavy may be imported here.

    :return: specs with unique names; a duplicate name raises PluginConflictError when it is used.
    """


@hookspec
def ajet_register_stores() -> Sequence[StoreSpec]:  # type: ignore[empty-body]
    """Name the sample stores this plugin provides.

    Called once, when the plugin is loaded; nothing heavy may be imported here.

    :return: specs with unique names; a duplicate name raises PluginConflictError when it is used.
    """


@hookspec
def ajet_register_mergers() -> Sequence[MergerSpec]:  # type: ignore[empty-body]
    """Name the mergers this plugin provides.

    Called once, when the plugin is loaded; nothing heavy may be imported here.

    :return: specs with unique names; a duplicate name raises PluginConflictError when it is used.
    """


@hookspec
def ajet_register_agents() -> Sequence[AgentSpec]:  # type: ignore[empty-body]
    """Name the agent adapters this plugin provides.

    Called once, when the plugin is loaded; nothing heavy may be imported here.

    :return: specs with unique names; a duplicate name raises PluginConflictError when it is used.
    """


@hookspec
def ajet_register_commands() -> Sequence[CommandSpec]:  # type: ignore[empty-body]
    """Name the subcommands this plugin adds to ``ajet``.

    Called once, when the plugin is loaded; nothing heavy may be imported here.

    :return: specs with unique names; a name of a built-in command is refused.
    """


@hookspec
def ajet_register_loggers() -> Sequence[LoggerSpec]:  # type: ignore[empty-body]
    """Name the metrics loggers this plugin provides.

    Called once, when the plugin is loaded; nothing heavy may be imported here.

    :return: specs with unique names; a duplicate name raises PluginConflictError when it is used.
    """


@hookspec
def ajet_register_worlds() -> Sequence[WorldSpec]:  # type: ignore[empty-body]
    """Name the worlds this plugin provides.

    Called once, when the plugin is loaded; nothing heavy may be imported here.

    :return: specs with unique names; a duplicate name raises PluginConflictError when it is used.
    """


@hookspec
def ajet_state_changed(state: ServerState) -> None:
    """Observe the server's state.

    Called after every change of state. An exception is reported with the plugin's name and ignored.

    :param state: the new state.
    """


@hookspec
def ajet_episode_finished(episode: EpisodeRecord) -> None:
    """Observe the end of an episode.

    Called once for every episode that ended or was aborted, after its outcome is durable.

    :param episode: its record, with state, reward and reason.
    """


@hookspec
def ajet_step_finished(summary: StepSummary) -> None:
    """Observe a finished training step.

    Called after the new weights are being served.

    :param summary: the step and its metrics.
    """
