"""Settings of the logger."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class WandbSettings(ComponentSettings):
    """Settings of the logger for Weights & Biases.

    :param project: of Weights & Biases; it is created if it does not exist.
    :param entity: user or team; "" for the default of the account.
    :param name: of the run; "" for the id of agentjet's run.
    :param tags: of the run.
    :param mode: ``offline`` writes files in the run directory, for ``wandb sync``.
    """

    project: Annotated[str, Field(min_length=1, max_length=128)] = "agentjet"
    entity: str = ""
    name: str = ""
    tags: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(default_factory=list)
    mode: Literal["online", "offline"] = "online"
