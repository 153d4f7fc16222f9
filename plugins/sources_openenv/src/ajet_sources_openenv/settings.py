"""Settings of the source."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ajet_sources import TurnSettings


class OpenEnvSettings(TurnSettings):
    """:param reset: further arguments of each reset, as in ``reset.difficulty=2``.

    :param actions: how the model acts: with a ``text``, a ``json`` object or ``tools``. By default
        ``auto``, which decides by the schema of actions: tools if the environment lists some, a
        text if the only required field is one, else JSON.
    :param action_field: the field of an action that a text becomes; by default the required one.
    :param observation_field: the field of an observation that the model sees; by default all of
        them, as JSON, or the text alone if there is no other field.
    :param sessions: how many sessions are open at a time. By default as many as the server allows,
        which it says when it refuses one.
    :param session_seconds: how long an episode waits while others have all sessions.
    :param step_seconds: how long the environment may take for a reset or an action.
    :param headers: headers of each request to the server, such as ``Authorization``.
    """

    reset: dict[str, Any] = Field(default_factory=dict)
    actions: Literal["auto", "text", "json", "tools"] = "auto"
    action_field: str = ""
    observation_field: str = ""
    sessions: Annotated[int | None, Field(ge=1)] = None
    session_seconds: Annotated[float, Field(gt=0)] = 600.0
    step_seconds: Annotated[float, Field(gt=0)] = 300.0
    headers: dict[str, str] = Field(default_factory=dict)
