"""What every component is handed when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class ComponentSettings(BaseModel):
    """Base of a component's settings: typed, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The surroundings of a component.

    :param run_dir: the run's directory; a component writes nowhere else.
    :param seed: the run's seed.
    :param shared: objects that components in the same process hand to each other (in-process
        weights); keys start with the component's name.
    """

    run_dir: Path
    seed: int = 0
    shared: dict[str, object] = field(default_factory=dict)
