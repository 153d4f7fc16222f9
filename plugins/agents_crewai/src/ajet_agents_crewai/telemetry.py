"""Disable CrewAI's telemetry inside episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crewai.telemetry import Telemetry

from agentjet.agents import current_route, override_method
from ajet_core.errors import ConfigError

# Every operation checks it. The public switch is an environment variable, which would affect the
# whole process.
_ASKED = "_should_execute_telemetry"


def tell_nothing() -> None:
    """Disable telemetry operations in episodes.

    :raises ConfigError: this version of CrewAI has no such check.
    """
    if _ASKED not in vars(Telemetry):
        raise ConfigError(
            f"Telemetry of this version of CrewAI has no {_ASKED}; agentjet-agents-crewai "
            "supports CrewAI 1.15 and later 1.x, and was tested with 1.15"
        )
    override_method(Telemetry, _ASKED, _outside_episodes)


def _outside_episodes(asked: Callable[..., bool]) -> Any:
    def answers(self: Telemetry) -> bool:
        return current_route() is None and asked(self)

    return answers
