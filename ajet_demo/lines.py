"""What the demo's client process tells its parent: one JSON object a line on its standard output."""

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

    :param step: steps trained.
    :param success: of the last evaluation.
    """

    type: Literal["done"] = "done"
    step: int
    success: float
    reached: bool


Line = EvalLine | TrainLine | DoneLine
_ADAPTER: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="type")])


def parse_line(text: str) -> Line:
    """A line as it was written.

    :raises pydantic.ValidationError: it is none.
    """
    return _ADAPTER.validate_json(text)
