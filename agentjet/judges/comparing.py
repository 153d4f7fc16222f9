"""Judges that compare a result by a pattern, by a schema, or as mathematics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentjet.judges.answers import answer_of, field_of, text_of
from agentjet.judges.bounded import OverLimitError, checks
from agentjet.judges.rubric import in_thread
from ajet_core.errors import ConfigError
from ajet_core.interfaces import ComponentSettings, EpisodeOutcome, Judge

_OVER = {"over_limit": "true"}


class RegexJudgeSettings(ComponentSettings):
    """:param pattern: the pattern of all tasks, as Python's `re` has them.

    :param field: the field of a task with its pattern, if all have not the same.
    :param match: ``whole`` if all of the result must match, without white space around it;
        ``search`` if a part of it must.
    :param group: the name of a group whose text must be the task's answer; of several matches, the
        last one counts. "" compares nothing.
    :param answer: the field of a task with its answer.
    :param ignore_case: whether letters match in either case.
    :param cpu_seconds: most CPU time of a match. A result that needs more gets 0.
    """

    pattern: str = ""
    field: Annotated[str, Field(min_length=1)] = "pattern"
    match: Literal["whole", "search"] = "whole"
    group: str = ""
    answer: Annotated[str, Field(min_length=1)] = "answer"
    ignore_case: bool = False
    cpu_seconds: Annotated[float, Field(gt=0, le=60)] = 2.0

    @model_validator(mode="after")
    def _compiles(self) -> RegexJudgeSettings:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"the pattern is invalid: {error}") from error
        return self


class RegexJudge(Judge[RegexJudgeSettings]):
    """1 if the result matches a pattern, and a group of it is the task's answer; else 0."""

    def __call__(self, task: Any, result: Any) -> Any:
        """Return the outcome, or an awaitable of it if an event loop is running.

        :raises ConfigError: the task has no pattern or answer, or its pattern is invalid.
        :raises JudgeFailedError: the match could not be tried.
        """
        settings = self.settings
        pattern = settings.pattern or field_of(task, settings.field)
        if not isinstance(pattern, str):
            raise ConfigError(
                f"a task has no text in the field {settings.field!r}: set judges.regex.pattern, or "
                "judges.regex.field to the field with the pattern",
                param="judges.regex.field",
            )
        return in_thread(
            _outcome,
            "regex",
            settings.cpu_seconds,
            {
                "pattern": pattern,
                "text": text_of(result),
                "whole": settings.match == "whole",
                "group": settings.group,
                "expected": answer_of(task, settings.answer, "regex") if settings.group else None,
                "ignore_case": settings.ignore_case,
            },
        )


class SchemaJudgeSettings(ComponentSettings):
    """:param file: a JSON file with the schema of all tasks.

    :param field: the field of a task with its schema, if all have not the same.
    :param partial: whether a JSON object that does not fit gets the share of the schema's
        required properties that it has and that fit, over their number and one.
    :param cpu_seconds: most CPU time of a check. A result that needs more gets 0.
    """

    file: Path | None = None
    field: Annotated[str, Field(min_length=1)] = "schema"
    partial: bool = False
    cpu_seconds: Annotated[float, Field(gt=0, le=60)] = 2.0


class SchemaJudge(Judge[SchemaJudgeSettings]):
    """1 if the result is JSON that fits a JSON schema, also in one Markdown fence; else 0.

    ``format`` is an annotation, as JSON Schema has it, and no schema is fetched.
    """

    def __init__(self, settings: SchemaJudgeSettings) -> None:
        super().__init__(settings)
        self._schema: Any = None
        if settings.file is not None:
            try:
                self._schema = json.loads(settings.file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"the schema {settings.file} cannot be read: {error}",
                    param="judges.json_schema.file",
                ) from error

    def __call__(self, task: Any, result: Any) -> Any:
        """Return the outcome, or an awaitable of it if an event loop is running.

        :raises ConfigError: the task has no schema, or it is invalid.
        :raises JudgeFailedError: the check failed, or jsonschema is not installed.
        """
        settings, schema = self.settings, self._schema
        if schema is None:
            schema = field_of(task, settings.field)
        if isinstance(schema, str):
            # Rows of tables have texts only.
            try:
                schema = json.loads(schema)
            except ValueError:
                schema = None
        if not isinstance(schema, dict | bool):
            raise ConfigError(
                f"a task has no JSON schema in the field {settings.field!r}: set "
                "judges.json_schema.file, or judges.json_schema.field to the field with the schema",
                param="judges.json_schema.field",
            )
        text = text_of(json.dumps(result) if isinstance(result, dict | list) else result)
        arguments = {"schema": schema, "text": text, "partial": settings.partial}
        return in_thread(_outcome, "json_schema", settings.cpu_seconds, arguments)


class SymbolicJudgeSettings(ComponentSettings):
    """:param answer: the field of a task with its answer.

    :param digits: decimal digits to which numbers must agree.
    :param cpu_seconds: most CPU time of a comparison. A result that needs more gets 0.
    """

    answer: Annotated[str, Field(min_length=1)] = "answer"
    digits: Annotated[int, Field(ge=1, le=15)] = 6
    cpu_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0


class SymbolicJudge(Judge[SymbolicJudgeSettings]):
    r"""1 if the last expression of the result equals the task's answer as mathematics, else 0.

    Both may be LaTeX or plain; ``\boxed{}`` takes precedence. Uses the library math-verify.
    """

    def __call__(self, task: Any, result: Any) -> Any:
        """Return the outcome, or an awaitable of it if an event loop is running.

        :raises ConfigError: the task's answer is missing or is not an expression.
        :raises JudgeFailedError: the comparison failed, or math-verify is not installed.
        """
        expected = answer_of(task, self.settings.answer, "symbolic")
        return in_thread(self._compare, expected, text_of(result))

    def _compare(self, expected: str, text: str) -> EpisodeOutcome:
        seconds, digits = self.settings.cpu_seconds, self.settings.digits
        arguments = {"expected": expected, "text": text, "digits": digits}
        outcome = _outcome("symbolic", seconds, arguments)
        if "over_limit" in outcome.metadata:
            try:
                checks.run("symbolic", seconds, **{**arguments, "text": "0"})
            except OverLimitError as error:
                raise ConfigError(
                    f"the reference {expected[:80]!r} takes more than {seconds:g} s of CPU time "
                    "to compare with 0: set judges.symbolic.cpu_seconds",
                    param="judges.symbolic.cpu_seconds",
                ) from error
        return outcome


def _outcome(check: str, cpu_seconds: float, arguments: dict[str, Any]) -> EpisodeOutcome:
    """Run a check. An answer that exhausts it is wrong."""
    try:
        value = checks.run(check, cpu_seconds, **arguments)
    except OverLimitError:
        return EpisodeOutcome(reward=0.0, metadata=_OVER)
    if isinstance(value, dict):
        problem = value["problem"]
        return EpisodeOutcome(
            reward=value["reward"], metadata={"problem": problem} if problem else {}
        )
    return EpisodeOutcome(reward=value)
