"""The output of the demo's client process for its parent: one JSON object per line."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EvalLine(_Line):
    """Success and mean reward on the held-out tasks, with the weights after `step` steps."""

    type: Literal["eval"] = "eval"
    step: int
    success: float
    reward: float
    episodes: int
    seconds: float


class TrainLine(_Line):
    """One batch of training episodes, rolled out with the weights after `step` - 1 steps."""

    type: Literal["train"] = "train"
    step: int
    success: float
    reward: float
    invalid: float
    moves: float
    episodes: int
    seconds: float


class DoneLine(_Line):
    """The last line of a client that was not interrupted.

    :param step: number of trained steps.
    :param success: success of the last evaluation.
    """

    type: Literal["done"] = "done"
    step: int
    success: float
    reached: bool


Line = EvalLine | TrainLine | DoneLine
_ADAPTER: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="type")])


def parse_line(text: str) -> Line:
    """Parse a line.

    :raises pydantic.ValidationError: it is not valid.
    """
    return _ADAPTER.validate_json(text)
