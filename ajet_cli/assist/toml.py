"""Merging values into a TOML file; comments and the rest of its text are unchanged."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any

from ajet_core.errors import ConfigError


def parse(text: str) -> dict[str, Any]:
    """Parse TOML.

    :raises ValueError: it is not TOML.
    """
    return tomllib.loads(text)


def merged(text: str, changes: Mapping[str, Any]) -> str:
    """Return `text` with `changes` merged in: tables by key, other values replaced.

    :raises ValueError: it cannot be parsed, or something else is where a table is needed.
    :raises ConfigError: the package tomlkit is missing.
    """
    try:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
    except ImportError as error:
        raise ConfigError(
            "changing a TOML file requires the package tomlkit: pip install 'agentjet[mcp]>=0.1'"
        ) from error
    expected = _expected(parse(text), changes, "")
    if expected == parse(text):
        return text
    try:
        document = tomlkit.parse(text)
        _merge(document, changes)
        result = tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ValueError(str(error)) from error
    # What is written must be what was meant, whatever the text looks like.
    if parse(result) != expected:
        raise ValueError("it has a form that cannot be changed safely")
    return result


def _merge(table: MutableMapping[str, Any], changes: Mapping[str, Any]) -> None:
    import tomlkit

    for key, value in changes.items():
        if isinstance(value, Mapping):
            if key not in table:
                # A table that has only tables needs no header of its own.
                only_tables = all(isinstance(item, Mapping) for item in value.values())
                table[key] = tomlkit.table(is_super_table=only_tables)
            _merge(table[key], value)
        elif table.get(key) != value:
            table[key] = value


def _expected(before: Any, changes: Mapping[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(before, dict):
        raise ValueError(f"{path} is not a table")
    result = dict(before)
    for key, value in changes.items():
        inside = f"{path}.{key}".removeprefix(".")
        result[key] = (
            _expected(result.get(key, {}), value, inside) if isinstance(value, Mapping) else value
        )
    return result
