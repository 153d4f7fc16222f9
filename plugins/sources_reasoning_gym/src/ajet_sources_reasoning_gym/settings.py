"""Settings of the source."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ajet_core.interfaces import ComponentSettings

SYSTEM = (
    "Solve the task. You may think first. Write your final answer, and nothing else, between "
    "<answer> and </answer>."
)
_Level = Annotated[int, Field(ge=0)]


class ReasoningGymSettings(ComponentSettings):
    """:param size: the number of tasks of the split ``train``.

    :param eval_size: the number of tasks of the split ``eval``, which has none that ``train`` has.
    :param seed: of the datasets.
    :param config: settings of the dataset, such as ``config.max_terms=3``.
    :param levels: levels of the dataset's curriculum, from 0, or ``all`` of them. Each has an equal
        share of the tasks, and its place among these levels is the difficulty of its tasks. By
        default there are none.
    :param attribute_levels: levels of single attributes of the curriculum, the same for all tasks.
    :param ranges: tasks of a level have what the easier levels have as well (``inclusive``), or
        only what that level adds (``upper_bound``).
    :param system: the system message; "" for none.
    :param tag: of the tasks, for mixtures; "" for the name of the dataset.
    """

    size: Annotated[int, Field(ge=1)] = 500
    eval_size: Annotated[int, Field(ge=0)] = 100
    seed: Annotated[int, Field(ge=0)] = 0
    config: dict[str, Any] = Field(default_factory=dict)
    levels: list[_Level] | Literal["all"] = Field(default_factory=list)
    attribute_levels: dict[str, _Level] = Field(default_factory=dict)
    ranges: Literal["inclusive", "upper_bound"] = "inclusive"
    system: str = SYSTEM
    tag: str = ""

    @property
    def has_curriculum(self) -> bool:
        """Whether the dataset's curriculum decides its configuration."""
        return bool(self.levels or self.attribute_levels)

    @model_validator(mode="after")
    def _levels_differ(self) -> Self:
        if self.levels != "all" and len(set(self.levels)) != len(self.levels):
            raise ValueError("levels names one twice")
        return self
