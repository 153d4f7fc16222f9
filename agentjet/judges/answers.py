"""The judges of agentjet, which compare a result with the task's answer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from ajet_core.errors import ConfigError
from ajet_core.interfaces import ComponentSettings, Judge

_NUMBER = re.compile(r"(?:(?<!\d)-)?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


class ExactJudgeSettings(ComponentSettings):
    """:param answer: the field of a task with its answer.

    :param ignore_case: whether letters match in either case.
    """

    answer: Annotated[str, Field(min_length=1)] = "answer"
    ignore_case: bool = False


class ExactJudge(Judge[ExactJudgeSettings]):
    """1 if the result is the task's answer, 0 if not. The amount of white space is ignored."""

    def __call__(self, task: Any, result: Any) -> float:
        """Compare the texts."""
        expected = _words(answer_of(task, self.settings.answer, "exact"))
        answer = _words(text_of(result))
        if self.settings.ignore_case:
            expected, answer = expected.casefold(), answer.casefold()
        return float(answer == expected)


class NumberJudgeSettings(ComponentSettings):
    """:param answer: the field of a task with its answer.

    :param tolerance: the largest difference that counts as equal.
    """

    answer: Annotated[str, Field(min_length=1)] = "answer"
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class NumberJudge(Judge[NumberJudgeSettings]):
    """1 if the last number of the result is that of the task's answer, 0 if not.

    The answer may be a solution whose last number counts, as in GSM8K.
    """

    def __call__(self, task: Any, result: Any) -> float:
        """Compare the last numbers."""
        key = self.settings.answer
        expected = _last_number(answer_of(task, key, "number"))
        if expected is None:
            raise ConfigError(
                f"the judge 'number' needs a number in the field {key!r} of each task, but one "
                "task has none",
                param="judges.number.answer",
            )
        value = _last_number(text_of(result))
        close = value is not None and abs(value - expected) <= self.settings.tolerance
        return float(close)


def field_of(task: Any, key: str) -> Any:
    """Return the value of a task's field, None without one."""
    return task.get(key) if isinstance(task, Mapping) else getattr(task, key, None)


def answer_of(task: Any, key: str, judge: str) -> str:
    """Return the text of a task's answer.

    :raises ConfigError: the task has no answer.
    """
    answer = field_of(task, key)
    if answer is None:
        raise ConfigError(
            f"a task has no field {key!r}: set judges.{judge}.answer to the field with the answer",
            param=f"judges.{judge}.answer",
        )
    return str(answer)


def text_of(result: Any) -> str:
    """Return the text of a result.

    :raises TypeError: a text cannot be had from the result.
    """
    if result is None:
        return ""
    if isinstance(result, str | int | float):
        return str(result)
    raise TypeError(
        f"the program returned {type(result).__name__}, but its judge compares texts: return the "
        "text of the answer"
    )


def _words(text: str) -> str:
    return " ".join(text.split())


def _last_number(text: str) -> float | None:
    numbers = _NUMBER.findall(text)
    value = float(numbers[-1].replace(",", "")) if numbers else math.nan
    return value if math.isfinite(value) else None
