"""Settings of the sources."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ajet_sources import TurnSettings


class GymnasiumSettings(TurnSettings):
    """:param options: arguments of the environment, as in ``options.is_slippery=false``.

    :param reset: ``options`` of each reset.
    :param actions: names of the actions, from the first one on. By default those of Gymnasium's
        own text environments, else numbers alone.
    :param show: what the model sees: the ``text`` that the environment renders, its
        ``observation``, or ``both``. By default both, or only the observation if the environment
        renders no text.
    """

    options: dict[str, Any] = Field(default_factory=dict)
    reset: dict[str, Any] = Field(default_factory=dict)
    actions: list[str] = Field(default_factory=list)
    show: Literal["auto", "text", "observation", "both"] = "auto"


class TextArenaSettings(TurnSettings):
    """:param options: arguments of the game, as in ``options.max_turns=10``."""

    options: dict[str, Any] = Field(default_factory=dict)
