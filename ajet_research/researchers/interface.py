"""What a researcher is: something that answers requests, of which nothing is trusted."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pydantic_core

from ajet_core.errors import AjetError, ConfigError

MOST_ANSWER = 200_000
"""Characters of an answer that are read."""
Request = Mapping[str, Any]
"""A request, as JSON: ``task``, ``instructions``, and what they are about."""


@dataclass(frozen=True, slots=True)
class ResearcherAnswer:
    """An answer, and what it took."""

    text: str
    tokens: int = 0
    money: float = 0.0


class ResearcherFailedError(AjetError):
    """A researcher gave no answer.

    :param temporary: whether another attempt may succeed.
    :param unpaid: whether it is certain that the attempt took no tokens.
    """

    type = "researcher_failed"

    def __init__(self, message: str, *, temporary: bool = False, unpaid: bool = True) -> None:
        super().__init__(message)
        self.temporary = temporary
        self.unpaid = unpaid


class CallAccount(Protocol):
    """Where calls are accounted, each before it is made."""

    def set_aside(self, text: str, tokens: int, money: float) -> int:
        """Set the worst case of a call aside, and return the call's number.

        :raises ResearcherFailedError: the budget does not allow it.
        """

    def settle(self, number: int, answer: ResearcherAnswer, problem: str) -> None:
        """Write what a call took."""


class Researcher(ABC):
    """Answers requests.

    :ivar name: under which its words appear.
    """

    name: str

    @abstractmethod
    def worst_case(self, request: Request) -> tuple[int, float]:
        """Return the tokens and the money that an answer takes at most."""

    @abstractmethod
    def answer(self, request: Request) -> ResearcherAnswer:
        """Answer once.

        :raises ResearcherFailedError: there is no answer.
        """

    def answer_within(self, request: Request, account: CallAccount) -> ResearcherAnswer:  # noqa: ARG002 - for some
        """Answer once.

        :param account: takes calls that are not known before, such as those of an assistant. They
            are not part of what the answer took.
        :raises ResearcherFailedError: there is no answer.
        """
        return self.answer(request)


def checked_name(name: str) -> str:
    """Return a researcher's name.

    :raises ConfigError: it has other signs than names of models have, or too many.
    """
    if not re.fullmatch(r"[\w.:/@+-]{1,80}", name, re.ASCII):
        raise ConfigError(
            f"{name[:80]!r} cannot be the name of a researcher: use up to 80 letters, digits and "
            "signs of . : / @ + -"
        )
    return name


def read_answer(text: str, key: str) -> Any:
    """Return the value of a key, or of ``declined``, in the JSON object that an answer is.

    The object may stand in a Markdown fence, and behind thoughts.

    :raises ValueError: the answer is none; the message says why.
    :raises DeclinedError: it has the key ``declined``.
    """
    if len(text) > MOST_ANSWER:
        raise ValueError(f"the answer has {len(text)} characters, more than {MOST_ANSWER}")
    if not text.strip():
        raise ValueError("the answer is empty")
    problem = "it has no JSON object"
    for part in _parts(text.rpartition("</think>")[2]):
        try:
            value = pydantic_core.from_json(part, allow_inf_nan=False)
        except ValueError as error:
            problem = str(error)
            continue
        if not isinstance(value, dict) or len(value) != 1:
            problem = "it is not an object with one key"
        elif isinstance(reason := value.get("declined"), str):
            raise DeclinedError(" ".join(printable(reason).split())[:500])
        elif key in value:
            return value[key]
        else:
            problem = f"its key is {next(iter(value))[:40]!r}"
    raise ValueError(f'the answer is not a JSON object with the key "{key}": {problem}')


class DeclinedError(Exception):
    """A researcher says that it cannot do what is asked. The message is its reason."""


def _parts(text: str) -> Iterator[str]:
    """Yield the parts of a text that may be its JSON object."""
    begin, end = text.find("{"), text.rfind("}")
    if 0 <= begin < end:
        yield text[begin : end + 1]
    if fences := re.findall(r"```(?:json)?\n(.*?)```", text, re.DOTALL):
        yield fences[-1]


def printable(text: str) -> str:
    """Return text that cannot change what a terminal does."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def as_text(request: Request) -> str:
    """Return a request as JSON, the same for equal ones."""
    return json.dumps(request, ensure_ascii=False, sort_keys=True, allow_nan=False)
