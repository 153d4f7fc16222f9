"""Specs, by which plugins describe their components: plain data without heavy imports.

`target` and `settings` are ``"package.module:Name"``. The module of `settings` must be light,
because the server validates settings in its process. `target` is imported where the component runs,
which may be another interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Never

from typing_extensions import TypeVar

from ajet_core.interfaces import (
    AdvantageEstimator,
    AgentAdapter,
    DatasetReader,
    Engine,
    EngineCapabilities,
    Judge,
    Merger,
    MetricsLogger,
    SampleStore,
    Sandbox,
    TaskSource,
    Trainer,
    TrainerCapabilities,
    World,
)

T_co = TypeVar("T_co", default=object, covariant=True)

NO_SETTINGS = "ajet_core.interfaces:ComponentSettings"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSpec(Generic[T_co]):
    """A component with its unique name; `T_co` is the interface of its kind.

    :param name: the name in settings and run configurations; unique among components of its kind.
    :param target: the class, a subclass of the kind's interface.
    :param settings: the class of the settings that `target` receives, a subclass of
        `ajet_core.interfaces.ComponentSettings`.
    :param summary: one line for ``ajet plugins``.
    """

    name: str
    target: str
    settings: str = NO_SETTINGS
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec(ComponentSpec[Engine]):
    """An `ajet_core.interfaces.Engine`.

    :param sleep_setting: the boolean setting that enables sleeping, if there is one.
    :param memory_setting: the setting of its fraction of a GPU's memory, if there is one.
    """

    capabilities: EngineCapabilities
    sleep_setting: str = ""
    memory_setting: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec(ComponentSpec[Trainer]):
    """An `ajet_core.interfaces.Trainer`."""

    capabilities: TrainerCapabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec(ComponentSpec[SampleStore]):
    """An `ajet_core.interfaces.SampleStore`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergerSpec(ComponentSpec[Merger]):
    """An `ajet_core.interfaces.Merger`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSpec(ComponentSpec[AdvantageEstimator]):
    """An `ajet_core.interfaces.AdvantageEstimator`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec(ComponentSpec[AgentAdapter]):
    """An `ajet_core.interfaces.AgentAdapter`.

    :param framework: a module that programs import if they use the framework, such as
        ``langchain_core``; `target` is not imported before it.
    """

    framework: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerSpec(ComponentSpec[MetricsLogger]):
    """An `ajet_core.interfaces.MetricsLogger`, which receives every step's metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec(ComponentSpec[World]):
    """An `ajet_core.interfaces.World`.

    :param ability: the ability that an agent needs, in a few words.
    """

    ability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSpec(ComponentSpec[DatasetReader]):
    """An `ajet_core.interfaces.DatasetReader`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpec(ComponentSpec[Judge]):
    """An `ajet_core.interfaces.Judge`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec(ComponentSpec[Sandbox]):
    """An `ajet_core.interfaces.Sandbox`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec(ComponentSpec[TaskSource]):
    """An `ajet_core.interfaces.TaskSource`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec(ComponentSpec[Never]):
    """A subcommand of ``ajet``: `target` is a `click.Command`, whose options are its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One installed plugin, known from its metadata only unless it was loaded.

    :param name: entry-point name.
    :param hook_api: the (major, minor) version it was written for; None if it declares none.
    :param hooks: names of the hooks it implements, once loaded.
    :param components: "kind:name" of the components it registers, once loaded.
    :param problem: why it cannot be used, "" if it can.
    """

    name: str
    distribution: str
    version: str
    module: str
    hook_api: tuple[int, int] | None
    hooks: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    problem: str = ""
    blocked: bool = field(default=False)
