"""Settings of the source."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class InspectSettings(ComponentSettings):
    """:param args: arguments of the task, as with ``inspect eval -T``.

    :param reward: the score that is the reward: the name of a scorer, or ``SCORER.KEY`` if its
        value has several parts. By default the first score.
    :param model_roles: models by role, such as ``grader``, for scorers and tools that ask a model
        of their own.
    :param eval_share: the share of samples that the split ``eval`` has, by their ids.
    :param log_dir: where Inspect's logs are kept.
    :param samples_per_log: a new log begins when one has this many samples and none is running.
    :param max_samples: how many samples run at a time.
    :param message_limit: of each sample; None leaves the task's own limit.
    :param time_limit: of each sample, in seconds; None leaves the task's own limit.
    :param max_retries: how often a model call that failed is repeated, with growing pauses.
    :param start_seconds: how long loading the task may take.
    """

    args: dict[str, Any] = Field(default_factory=dict)
    reward: str = ""
    model_roles: dict[str, str] = Field(default_factory=dict)
    eval_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    log_dir: Annotated[str, Field(min_length=1)] = "logs/inspect"
    samples_per_log: Annotated[int, Field(ge=1)] = 1000
    max_samples: Annotated[int, Field(ge=1)] = 256
    message_limit: Annotated[int | None, Field(ge=1)] = None
    time_limit: Annotated[int | None, Field(ge=1)] = None
    max_retries: Annotated[int, Field(ge=0)] = 10
    start_seconds: Annotated[float, Field(gt=0)] = 600.0
