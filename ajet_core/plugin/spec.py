"""The hook specifications of agentjet, and nothing else.

A plugin is a light module behind an entry point of the group ``agentjet`` that implements any of
these with `ajet_core.plugin.hookimpl`. ``docs/plugins`` has an example of each.

Registering hooks are called once, when the plugin is loaded. They return specs with unique names:
if two plugins register the same name, using it raises PluginConflictError. They import nothing
heavy, because a server loads the hooks of every installed plugin.

Observers are called from the server's event loop and must return quickly. An exception is reported
with the plugin's name and ignored. Tokens and batches never travel through hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from ajet_core.interfaces import EpisodeRecord
    from ajet_core.plugin.components import (
        AdvantageSpec,
        AgentSpec,
        CommandSpec,
        EngineSpec,
        JudgeSpec,
        LoggerSpec,
        MergerSpec,
        ReaderSpec,
        SandboxSpec,
        SourceSpec,
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
    """Register the inference engines of this plugin.

    A run selects an engine by `engine.name`, and `engine.settings` configures it.

    .. versionadded:: 1.0
    """


@hookspec
def ajet_register_trainers() -> Sequence[TrainerSpec]:  # type: ignore[empty-body]
    """Register the trainers of this plugin.

    A run selects a trainer by `trainer.name`, and `trainer.settings` configures it.

    .. versionadded:: 1.0
    """


@hookspec
def ajet_register_stores() -> Sequence[StoreSpec]:  # type: ignore[empty-body]
    """Register the sample stores of this plugin.

    The setting `store.name` selects the store of a server, and `store.settings` configures it.

    .. versionadded:: 1.0
    """


@hookspec
def ajet_register_mergers() -> Sequence[MergerSpec]:  # type: ignore[empty-body]
    """Register the mergers of this plugin.

    A run selects a merger by `merger.name`, and `merger.settings` configures it.

    .. versionadded:: 1.0
    """


@hookspec
def ajet_register_advantages() -> Sequence[AdvantageSpec]:  # type: ignore[empty-body]
    """Register the advantage estimators of this plugin.

    A run selects an estimator by `algorithm.advantage`, and `algorithm.advantage_settings`
    configures it.

    .. versionadded:: 1.1
    """


@hookspec
def ajet_register_agents() -> Sequence[AgentSpec]:  # type: ignore[empty-body]
    """Register the agent adapters of this plugin.

    Programs that import the framework of an adapter use it. `[agents.NAME]` in `ajet.toml`
    configures it.

    .. versionadded:: 1.0
    """


@hookspec
def ajet_register_loggers() -> Sequence[LoggerSpec]:  # type: ignore[empty-body]
    """Register the metrics loggers of this plugin.

    `[loggers.NAME]` in `ajet.toml` turns a logger on and configures it.

    .. versionadded:: 1.0
    """


@hookspec
def ajet_register_worlds() -> Sequence[WorldSpec]:  # type: ignore[empty-body]
    """Register the worlds of this plugin.

    `ajet_worlds.load_world` selects a world by its name, as the demo and the benchmarks do.
    `[worlds.NAME]` in `ajet.toml` configures it.

    .. versionadded:: 1.1
    """


@hookspec
def ajet_register_readers() -> Sequence[ReaderSpec]:  # type: ignore[empty-body]
    """Register the dataset readers of this plugin.

    `agentjet.read_tasks` selects a reader by its name. `[readers.NAME]` in `ajet.toml` configures
    it.

    .. versionadded:: 1.2
    """


@hookspec
def ajet_register_judges() -> Sequence[JudgeSpec]:  # type: ignore[empty-body]
    """Register the judges of this plugin.

    `trainable(reward=NAME)` and `agentjet.load_judge` select a judge by its name. `[judges.NAME]`
    in `ajet.toml` configures it.

    .. versionadded:: 1.2
    """


@hookspec
def ajet_register_sandboxes() -> Sequence[SandboxSpec]:  # type: ignore[empty-body]
    """Register the sandboxes of this plugin.

    `ajet exec --box NAME` and `ajet_exec.load_sandbox` select a sandbox by its name.
    `[sandboxes.NAME]` in `ajet.toml` configures it.

    .. versionadded:: 1.4
    """


@hookspec
def ajet_register_sources() -> Sequence[SourceSpec]:  # type: ignore[empty-body]
    """Register the task sources of this plugin.

    `ajet train`, `ajet eval`, `ajet check` and `ajet_sources.load_source` select a source by its
    name, as in `NAME:ARGUMENT?key=value`. `[sources.NAME]` in `ajet.toml` configures it.

    .. versionadded:: 1.5
    """


@hookspec
def ajet_register_commands() -> Sequence[CommandSpec]:  # type: ignore[empty-body]
    """Register the subcommands of `ajet` of this plugin.

    `ajet NAME` runs the command, which is a `click.Command`. The name of a built-in command is
    refused. A command has no settings but its options.

    .. versionadded:: 1.0
    """


@hookspec
def ajet_state_changed(state: ServerState) -> None:
    """Observe the server's state.

    Called after every change of state.

    .. versionadded:: 1.0

    :param state: the new state.
    """


@hookspec
def ajet_episode_finished(episode: EpisodeRecord) -> None:
    """Observe the end of an episode.

    Called once for every episode that ended or was aborted, after its outcome is durable.

    .. versionadded:: 1.0

    :param episode: its record, with state, reward and reason.
    """


@hookspec
def ajet_step_finished(summary: StepSummary) -> None:
    """Observe a finished training step.

    Called after the new weights are being served.

    .. versionadded:: 1.0

    :param summary: the step and its metrics.
    """
