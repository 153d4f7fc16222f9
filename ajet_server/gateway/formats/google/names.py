"""Names of fields: Google accepts each as ``maxOutputTokens`` and as ``max_output_tokens``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel


def camel_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the names of its own fields in camel case; values are unchanged."""
    return {
        to_camel(name.strip("_")) if "_" in name else name: value for name, value in fields.items()
    }


def camel_fields(value: Any) -> Any:
    """Return `camel_case` of an object, and any other value unchanged."""
    return camel_case(value) if isinstance(value, dict) else value
