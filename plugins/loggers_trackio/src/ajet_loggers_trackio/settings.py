"""Settings of the logger."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class TrackioSettings(ComponentSettings):
    """Settings of the logger for Trackio.

    :param project: of Trackio.
    :param name: of the run; "" for the id of agentjet's run.
    :param directory: for Trackio's databases, one for each project; a relative path is in the run
        directory.
    """

    project: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")] = "agentjet"
    name: str = ""
    directory: Annotated[str, Field(min_length=1)] = "trackio"
