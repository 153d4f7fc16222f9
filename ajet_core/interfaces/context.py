"""What every component is handed when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

LOOPBACK = "127.0.0.1"


class ComponentSettings(BaseModel):
    """Base of a component's settings: typed, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """Marks a field of `ComponentSettings` that names a model directory, as ``Annotated[str, ModelDirectory()]``.

    The server holds it to the rules of ``model.path``: it has to be complete and inside a model root, and the component is
    given its absolute path.
    """


@dataclass(frozen=True, slots=True)
class ModelServers:
    """What the operator says of the model servers behind an engine; never part of a run's configuration.

    :param python: interpreter to start them with; None lets the engine look for one.
    :param arguments: added to their command line.
    :param urls: servers that run already; none are started then.
    :param api_key: what those ask for.
    """

    python: str | None = None
    arguments: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The surroundings of a component.

    :param run_dir: the run's directory; a component writes nowhere else.
    :param seed: the run's seed.
    :param shared: objects that components in the same process hand to each other (in-process
        weights); keys start with the component's name.
    :param servers: for an engine that serves a model by processes of their own.
    :param collective_host: address that a trainer listens at which sends weights over the network.
    """

    run_dir: Path
    seed: int = 0
    shared: dict[str, object] = field(default_factory=dict)
    servers: ModelServers = field(default_factory=ModelServers)
    collective_host: str = LOOPBACK
