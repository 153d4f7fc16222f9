"""The parts of a run's configuration that inspection needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pydantic_core

from ajet_core.errors import DamagedRecordError
from ajet_core.interfaces import RunRecord


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The needed part of a run configuration.

    :param model: directory of the model on the server's machine, None if no run was configured.
    :param untrained_agents: agents whose calls are not trained.
    """

    run_id: str = ""
    model: Path | None = None
    untrained_agents: frozenset[str] = frozenset()

    @classmethod
    def of(cls, run: RunRecord | None) -> RunFacts:
        """Read the facts of a run, ignoring unknown settings of other versions."""
        if run is None:
            return cls()
        try:
            config = pydantic_core.from_json(run.config_json)
            path = config.get("model", {}).get("path")
            untrained = frozenset(config.get("rollout", {}).get("untrained_agents", ()))
        except (ValueError, AttributeError, TypeError) as error:
            raise DamagedRecordError(
                f"the stored configuration of run {run.run_id} is damaged ({error}): restore the "
                "store from a backup"
            ) from error
        return cls(
            run_id=run.run_id,
            model=Path(path) if isinstance(path, str) else None,
            untrained_agents=untrained,
        )
