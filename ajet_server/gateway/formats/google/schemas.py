"""Convert Google's schemas, a dialect of OpenAPI 3.0, to JSON Schema."""

from __future__ import annotations

from typing import Any

from ajet_server.gateway.formats.bodies import wrong
from ajet_server.gateway.formats.google.names import camel_case

_COUNTS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
# Formats of OpenAPI that JSON Schema does not have; the type says the rest.
_FORMATS = frozenset({"enum", "int32", "int64", "float", "double", "byte", "binary", "password"})
_REFERENCE = "#/defs/"


def json_schema(schema: Any, path: str) -> dict[str, Any]:
    """Return a schema as JSON Schema.

    Types are written in lower case, ``nullable`` becomes the type null, numbers that are written as
    text become numbers, and properties stand in the order that ``propertyOrdering`` requires.

    :param path: path of the schema in the request, for errors.
    :raises RequestError: the schema is malformed; `param` names the field.
    """
    if not isinstance(schema, dict):
        wrong(path, "a schema object")
    given = camel_case(schema)
    nullable, order = given.pop("nullable", None), given.pop("propertyOrdering", None)
    converted: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            converted |= _keyword(name, value, f"{path}.{name}")
    if converted.get("type") == "integer" and isinstance(converted.get("enum"), list):
        converted["enum"] = [_number(value) for value in converted["enum"]]
    if isinstance(order, list) and isinstance(converted.get("properties"), dict):
        properties = converted["properties"]
        first = {name: properties[name] for name in order if name in properties}
        converted["properties"] = first | properties
    return _nullable(converted) if nullable is True else converted


def _keyword(name: str, value: Any, path: str) -> dict[str, Any]:
    """Return what becomes of one keyword of a schema."""
    keyword, content = name, value
    if name in _COUNTS:
        content = _count(value, path)
    elif name == "type":
        return _type(value, path)
    elif name == "items" or (name == "additionalProperties" and not isinstance(value, bool)):
        content = json_schema(value, path)
    elif name == "anyOf":
        content = _listed(value, path)
    elif name in ("properties", "defs", "$defs"):
        keyword = "properties" if name == "properties" else "$defs"
        content = _named(value, path)
    elif name == "ref" and isinstance(value, str):
        keyword, content = "$ref", value.replace(_REFERENCE, "#/$defs/", 1)
    elif name == "example":
        keyword, content = "examples", [value]
    elif name == "format" and value in _FORMATS:
        return {}
    return {keyword: content}


def _count(value: Any, path: str) -> int:
    number = _number(value)
    if not isinstance(number, int) or isinstance(number, bool):
        wrong(path, "an integer")
    return number


def _listed(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        wrong(path, "a list of schemas")
    return [json_schema(one, f"{path}[{i}]") for i, one in enumerate(value)]


def _named(value: Any, path: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        wrong(path, "an object of schemas")
    return {name: json_schema(one, f"{path}.{name}") for name, one in value.items()}


def _type(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return {"type": [one.lower() for one in value]}
    if not isinstance(value, str):
        wrong(path, "the name of a type")
    return {} if value == "TYPE_UNSPECIFIED" else {"type": value.lower()}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    widened = dict(schema)
    if isinstance(kind, str):
        widened["type"] = [kind, "null"]
    if isinstance(widened.get("anyOf"), list):
        widened["anyOf"] = [*widened["anyOf"], {"type": "null"}]
    if isinstance(widened.get("enum"), list) and None not in widened["enum"]:
        widened["enum"] = [*widened["enum"], None]
    return widened


def _number(value: Any) -> Any:
    """Return the number that a text is; int64 is text in Google's JSON, and so is each enum."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        return value
