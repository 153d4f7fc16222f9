"""Events while a request is answered, independent of the dialect."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_server.gateway.formats.answer import Answer
from ajet_server.gateway.formats.generation import Generation


@dataclass(frozen=True, slots=True)
class CallDelta:
    """An addition to a tool call.

    :param index: index of the call in the answer, from 0.
    :param id: id of the call, only in its first delta.
    :param name: name of the function, only in the first delta.
    :param arguments: JSON text to append to the arguments.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """An addition to an answer: reasoning, text and calls, in this order; each may be empty."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


NOTHING = Delta()


@dataclass(frozen=True, slots=True)
class Started:
    """The first token of a choice was sampled."""

    choice: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """More tokens of a choice were sampled; the delta is empty if no text became certain."""

    choice: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice is complete and recorded.

    :param answer: the whole answer.
    :param finish_reason: "stop", "length" or "tool_calls".
    :param rest: the part of `answer` that earlier deltas did not have.
    """

    choice: int
    generation: Generation
    answer: Answer
    finish_reason: str
    rest: Delta = NOTHING


Event = Started | ChoiceDelta | Choice
