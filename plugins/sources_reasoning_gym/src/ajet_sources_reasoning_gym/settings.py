"""Settings of the source."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from ajet_core.interfaces import ComponentSettings

SYSTEM = (
    "Solve the task. You may think first. Write your final answer, and nothing else, between "
    "<answer> and </answer>."
)


class ReasoningGymSettings(ComponentSettings):
    """:param size: the number of tasks of the split ``train``.

    :param eval_size: the number of tasks of the split ``eval``, which has none that ``train`` has.
    :param seed: of the datasets.
    :param config: settings of the dataset, such as ``config.max_terms=3``.
    :param levels: levels of the dataset's curriculum, from 0. Each has an equal share of the tasks,
        and its place among these levels is the difficulty of its tasks. By default there are none.
    :param system: the system message; "" for none.
    :param tag: of the tasks, for mixtures; "" for the name of the dataset.
    """

    size: Annotated[int, Field(ge=1)] = 500
    eval_size: Annotated[int, Field(ge=0)] = 100
    seed: Annotated[int, Field(ge=0)] = 0
    config: dict[str, Any] = Field(default_factory=dict)
    levels: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    system: str = SYSTEM
    tag: str = ""

    @model_validator(mode="after")
    def _sizes_suffice(self) -> Self:
        if len(set(self.levels)) != len(self.levels):
            raise ValueError("levels names one twice")
        if len(self.levels) > self.size or 0 < self.eval_size < len(self.levels):
            raise ValueError("each level needs a task in each split: raise size and eval_size")
        return self
