"""The sources of settings: flags, environment and TOML file."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from ajet_core.alike import did_you_mean
from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.files import read_bytes

DEFAULT_FILE = Path("ajet.toml")
ENV_PREFIX = "AJET_"
ENV_SHORTCUTS = {"AJET_URL": ("client", "url"), "AJET_TOKEN": ("client", "token")}
"""Short names of the two variables that clients use most often."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The values of each source, before validation.

    :param file: the TOML file that was read, if any.
    """

    flags: dict[str, Any]
    environment: dict[str, Any]
    file_values: dict[str, Any]
    file: Path | None

    @classmethod
    def read(cls, settings_cls: type[BaseSettings], flags: Mapping[str, Any]) -> Layers:
        """Read all sources.

        :raises ConfigError: a source cannot be read, or the environment has unknown settings.
        """
        given = {name: _plain(value) for name, value in flags.items()}
        environment = _read_environment(settings_cls)
        chosen = given.get("config") or environment.get("config")
        file = Path(chosen) if chosen else (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
        return cls(given, environment, _read_toml(file) if file else {}, file)

    def merged(self) -> dict[str, Any]:
        """Return all sources merged by precedence."""
        merged = _merge(_merge(self.file_values, self.environment), self.flags)
        return merged if self.file is None else {**merged, "config": self.file}

    def source(self, path: tuple[str, ...]) -> str:
        """Return where the value of `path` is from: "command line", a variable or a file's path."""
        if _holds(self.flags, path):
            return "command line"
        if _holds(self.environment, path):
            return _variable(path)
        if _holds(self.file_values, path):
            return str(self.file)
        return "default"

    def sources(self, path: tuple[str, ...], cls: type[BaseModel]) -> str:
        """Return the source of `path`; for a section, the sources of all non-default keys."""
        section = _model_at(cls, path)
        if section is None:
            return self.source(path)
        sources = {self.source((*path, key)): None for key in section.model_fields}
        sources.pop("default", None)
        return ", ".join(sources) or self.source(path)


def _plain(value: Any) -> Any:
    # A section given as a model only overrides the fields that were set in it.
    return (
        {name: getattr(value, name) for name in value.model_fields_set}
        if isinstance(value, BaseModel)
        else value
    )


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged


def _holds(values: Any, path: tuple[str, ...]) -> bool:
    for key in path:
        if not isinstance(values, Mapping):
            return True  # a whole section was given, wrongly, as one value
        if key not in values:
            return False
        values = values[key]
    return True


def leaves(
    values: Mapping[str, Any], path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], Any]]:
    """Return the values that are not tables, with their paths."""
    values_by_path: list[tuple[tuple[str, ...], Any]] = []
    for key, value in values.items():
        here = (*path, key)
        if isinstance(value, Mapping) and value:
            values_by_path.extend(leaves(value, here))
        else:
            values_by_path.append((here, value))
    return values_by_path


def _read_environment(settings_cls: type[BaseSettings]) -> dict[str, Any]:
    sections = [name for name in settings_cls.model_fields if _model_at(settings_cls, (name,))]
    for name in os.environ:
        key = name.upper().removeprefix(ENV_PREFIX).lower()
        if not name.upper().startswith(ENV_PREFIX) or key in settings_cls.model_fields:
            continue
        top, nested, _ = key.partition("__")
        # Other programs may use the prefix; only refuse names that look like settings.
        if (nested and top not in sections) or (
            not nested and any(key.startswith(f"{section}_") for section in sections)
        ):
            raise ConfigError(
                f"environment variable {name} does not name a setting; join section and key "
                "with two underscores, as in AJET_SERVER__PORT (sections: "
                f"{', '.join(sections)})",
                param=name,
            )
    try:
        values = EnvSettingsSource(settings_cls)()
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        culprits = sorted(
            name
            for name in os.environ
            if field and name.upper().startswith(ENV_PREFIX + field[1].upper())
        )
        raise ConfigError(
            f"environment: {', '.join(culprits)}: the value must be JSON, such as "
            "AJET_PLUGINS__BLOCKED='[\"torch\"]'",
            param=field[1] if field else None,
        ) from error
    for variable, (section, key) in ENV_SHORTCUTS.items():
        if os.environ.get(variable):
            values[section] = {key: os.environ[variable], **values.get(section, {})}
    return values


def _variable(path: tuple[str, ...]) -> str:
    names = {name.upper(): name for name in os.environ}
    for length in range(len(path), 0, -1):
        candidate = ENV_PREFIX + "__".join(path[:length]).upper()
        if candidate in names:
            return names[candidate]
    return next((name for name, target in ENV_SHORTCUTS.items() if target == path), "environment")


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(read_bytes(file).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}", param="config") from error
    except UnreadableFileError as error:
        raise ConfigError(error.message, param="config") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}", param="config") from error
    if "config" in values:
        raise ConfigError(
            f"{file}: config: a settings file cannot name another settings file", param="config"
        )
    return values


def config_error(
    error: ValidationError, settings_cls: type[BaseSettings], layers: Layers
) -> ConfigError:
    """Convert pydantic's error, with the source of each value but without the values."""
    problems = []
    paths = []
    # Keep inputs out of the message: they may be secrets.
    for detail in error.errors(include_input=False, include_url=False):
        path = tuple(map(str, detail["loc"]))
        paths.append(".".join(path))
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            section = _model_at(settings_cls, path[:-1]) or settings_cls
            alike = did_you_mean(path[-1], section.model_fields)
            message = f"unknown key{alike} (known keys: {', '.join(section.model_fields)})"
        problems.append(f"{layers.sources(path, settings_cls)}: {paths[-1]}: {message}")
    return ConfigError("\n".join(problems), param=paths[0])


def _model_at(model: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel] | None:
    for key in path:
        field = model.model_fields.get(key)
        annotation = field.annotation if field is not None else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return None
        model = annotation
    return model
