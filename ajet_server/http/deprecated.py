"""Deprecated parts of the protocol: which of them a request uses, and where documents mark them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ajet_core.protocol import DEPRECATED


def deprecations(route: str, version: str | None, body: Any) -> list[str]:
    """Return what is deprecated of a request, a sentence for each part.

    :param route: method and path, such as ``POST /v1/episodes``.
    :param version: the agreed protocol version, if the request states one.
    """
    used = [route, *_fields(body)]
    if version is not None:
        used.append(f"protocol {version.partition('.')[0]}")
    return [f"{key} is deprecated {DEPRECATED[key]}" for key in DEPRECATED if key in used]


def mark_deprecated(document: dict[str, Any]) -> None:
    """Mark deprecated routes and fields in an OpenAPI document."""
    for key in DEPRECATED:
        method, _, path = key.lower().partition(" ")
        model, _, field = key.partition(".")
        operation = document["paths"].get(path, {}).get(method)
        schema = document["components"]["schemas"].get(model, {}).get("properties", {}).get(field)
        for part in (operation, schema):
            if part is not None:
                part["deprecated"] = True


def _fields(value: Any) -> Iterator[str]:
    """Yield the fields of messages that were set to something else than their defaults."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            part = getattr(value, name)
            if name in value.model_fields_set and part != field.get_default(
                call_default_factory=True, validated_data={}
            ):
                yield f"{type(value).__name__}.{name}"
                yield from _fields(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _fields(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _fields(part)
