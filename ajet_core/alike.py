"""Names that a misspelled one may stand for."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the name that a misspelled one may stand for, "" if none is alike."""
    alike = get_close_matches(name, list(known), n=1)
    return f" (did you mean {alike[0]!r}?)" if alike else ""


def with_hints(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """Return the error of a model with a hint for each unknown key, without addresses of pages."""
    details = [
        InitErrorDetails(
            type=PydanticCustomError(one["type"], _text(one, model)),
            loc=one["loc"],
            input=one["input"],
        )
        for one in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data(error.title, details)


def _text(detail: ErrorDetails, model: type[BaseModel]) -> str:
    if detail["type"] != "extra_forbidden":
        return detail["msg"]
    *parents, key = map(str, detail["loc"])
    section: type[BaseModel] | None = model
    for name in parents:
        section = section and _sections(section).get(name)
    if section is None:
        return detail["msg"]
    places = [f"{name}.{key}" for name, s in _sections(model).items() if key in s.model_fields]
    if len(places) == 1:
        return f"unknown setting (did you mean {places[0]!r}?)"
    hint = did_you_mean(key, section.model_fields)
    return f"unknown setting{hint or '; known here: ' + ', '.join(section.model_fields)}"


def _sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    types = {name: field.annotation for name, field in model.model_fields.items()}
    return {n: t for n, t in types.items() if isinstance(t, type) and issubclass(t, BaseModel)}
