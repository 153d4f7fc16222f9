"""Arguments that every component receives when it is created."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

LOOPBACK = "127.0.0.1"


class ComponentSettings(BaseModel):
    """Base class of components' settings: typed, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Covariant, so that any engine is an `Engine`, which is short for `Engine[ComponentSettings]`.
SettingsT_co = TypeVar(
    "SettingsT_co", bound=ComponentSettings, default=ComponentSettings, covariant=True
)
"""The settings class of a component: the one that its spec names."""


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """Marks a settings field as a model directory, as in ``Annotated[str, ModelDirectory()]``.

    The rules of ``model.path`` apply: the server checks that the directory is complete and inside a
    model root, and passes its absolute path to the component.
    """


@dataclass(frozen=True, slots=True)
class ModelServers:
    """The operator's settings for an engine's model servers; not part of run configurations.

    :param python: interpreter to start them with; if None, the engine looks for one.
    :param arguments: added to their command line.
    :param urls: servers that are already running.
    :param started: whether the engine also starts servers; by default only without `urls`.
    :param api_key: key for the servers in `urls`.
    """

    python: str | None = None
    arguments: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    started: bool | None = None
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The environment of a component.

    :param run_dir: the run's directory; a component must not write anywhere else.
    :param seed: the run's seed.
    :param exact: compute a token the same, to the bit, whatever is computed with it.
    :param shared: objects that components of one process share; keys start with a component's name.
    :param servers: settings of an engine that serves a model in separate processes.
    :param collective_host: address at which a trainer listens that sends weights over the network.
    """

    run_dir: Path
    seed: int = 0
    exact: bool = False
    shared: dict[str, object] = field(default_factory=dict)
    servers: ModelServers = field(default_factory=ModelServers)
    collective_host: str = LOOPBACK
