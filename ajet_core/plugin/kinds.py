"""The kinds of components, with their hooks and interfaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ajet_core.interfaces import (
    AdvantageEstimator,
    AgentAdapter,
    DatasetReader,
    Engine,
    Judge,
    Merger,
    MetricsLogger,
    SampleStore,
    Sandbox,
    TaskSource,
    Trainer,
    World,
)
from ajet_core.plugin.components import (
    AdvantageSpec,
    AgentSpec,
    CommandSpec,
    ComponentSpec,
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

KindName = Literal[
    "engine",
    "trainer",
    "store",
    "merger",
    "advantage",
    "agent",
    "logger",
    "world",
    "reader",
    "judge",
    "sandbox",
    "source",
    "command",
]

RESERVED_COMMANDS = frozenset(
    {"alert", "budget", "config", "doctor", "engine", "env", "gateway", "mixture", "monitor", "new"}
    | {"pause", "plugins", "preflight", "resume", "serve", "status", "token", "ui", "version"}
)
"""Names of the built-in subcommands of ``ajet``."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of component.

    :param hook: the hook that registers components of this kind.
    :param spec: the type of the specs that the hook returns.
    :param interface: the base class of targets; None for commands, whose target is an object.
    :param chosen_by: the configuration field that names the component; "" for ``KIND.name``. Here
        and in `set_by`, ``{}`` is the component's name.
    :param set_by: the field with its settings; "" for ``KIND.settings``.
    """

    name: KindName
    hook: str
    spec: type[ComponentSpec]
    interface: type | None
    chosen_by: str = ""
    set_by: str = ""


KINDS: tuple[Kind, ...] = (
    Kind("engine", "ajet_register_engines", EngineSpec, Engine),
    Kind("trainer", "ajet_register_trainers", TrainerSpec, Trainer),
    Kind("store", "ajet_register_stores", StoreSpec, SampleStore),
    Kind("merger", "ajet_register_mergers", MergerSpec, Merger),
    Kind(
        "advantage",
        "ajet_register_advantages",
        AdvantageSpec,
        AdvantageEstimator,
        chosen_by="algorithm.advantage",
        set_by="algorithm.advantage_settings",
    ),
    Kind("agent", "ajet_register_agents", AgentSpec, AgentAdapter, set_by="agents.{}"),
    Kind("logger", "ajet_register_loggers", LoggerSpec, MetricsLogger, "loggers.{}", "loggers.{}"),
    Kind("world", "ajet_register_worlds", WorldSpec, World, set_by="worlds.{}"),
    Kind("reader", "ajet_register_readers", ReaderSpec, DatasetReader, set_by="readers.{}"),
    Kind("judge", "ajet_register_judges", JudgeSpec, Judge, set_by="judges.{}"),
    Kind("sandbox", "ajet_register_sandboxes", SandboxSpec, Sandbox, set_by="sandboxes.{}"),
    Kind("source", "ajet_register_sources", SourceSpec, TaskSource, set_by="sources.{}"),
    Kind("command", "ajet_register_commands", CommandSpec, None),
)

BY_NAME: dict[KindName, Kind] = {kind.name: kind for kind in KINDS}


def kind_of(spec: ComponentSpec) -> Kind:
    """Return the kind of a spec.

    :raises TypeError: it is a plain `ComponentSpec`, which has no kind.
    """
    for kind in KINDS:
        if isinstance(spec, kind.spec):
            return kind
    raise TypeError(f"no kind of component has the spec {type(spec).__name__}")
