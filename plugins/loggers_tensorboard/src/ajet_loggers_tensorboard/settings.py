"""Settings of the logger."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class TensorBoardSettings(ComponentSettings):
    """Settings of the logger for TensorBoard.

    :param directory: for event files, each run in a folder of its own; a relative path is in the
        run directory.
    """

    directory: Annotated[str, Field(min_length=1)] = "tensorboard"
