"""Errors of a configuration that name the setting that was probably meant."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ajet_core.alike import did_you_mean

_UNKNOWN = "extra_forbidden"


def with_hints(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """Return the same error with a hint for each unknown key, and without addresses of pages.

    :param model: what was to be validated.
    """
    return ValidationError.from_exception_data(
        error.title,
        [
            InitErrorDetails(
                type=PydanticCustomError(detail["type"], _text(detail, model)),
                loc=detail["loc"],
                input=detail["input"],
            )
            for detail in error.errors(include_url=False)
        ],
    )


def _text(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """Return the message of one error; types of `PydanticCustomError` are of literal strings."""
    if detail["type"] != _UNKNOWN:
        return detail["msg"]
    *parents, key = map(str, detail["loc"])
    section: type[BaseModel] | None = model
    for name in parents:
        section = None if section is None else _section(section, name)
    if section is None:
        return detail["msg"]
    elsewhere = [
        f"{name}.{key}"
        for name in model.model_fields
        if (other := _section(model, name)) is not None and key in other.model_fields
    ]
    if len(elsewhere) == 1:
        return f"unknown setting (did you mean {elsewhere[0]!r}?)"
    hint = did_you_mean(key, section.model_fields)
    return f"unknown setting{hint or '; known here: ' + ', '.join(section.model_fields)}"


def _section(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = model.model_fields.get(name)
    annotation = None if field is None else field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None
