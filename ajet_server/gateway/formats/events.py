"""What happens while a request is answered, in no dialect yet."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_server.gateway.formats.answer import Answer
from ajet_server.gateway.formats.generation import Generation


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of a tool call.

    :param index: among the calls of the answer, from 0.
    :param id: with the first delta of a call, as is `name`.
    :param arguments: to be appended; JSON text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """More of an answer; the three come in this order, and what is "" or empty is not there."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


NOTHING = Delta()


@dataclass(frozen=True, slots=True)
class Started:
    """The first token of a choice is there."""

    choice: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """There are more tokens of a choice; perhaps with text that is certain by now."""

    choice: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice is complete, and recorded.

    :param answer: all of it.
    :param finish_reason: "stop", "length" or "tool_calls".
    :param rest: of `answer`, what the deltas before did not have.
    """

    choice: int
    generation: Generation
    answer: Answer
    finish_reason: str
    rest: Delta = NOTHING


Event = Started | ChoiceDelta | Choice
