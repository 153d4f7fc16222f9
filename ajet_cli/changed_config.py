"""The option ``--set PATH=VALUE``: a run configuration with some settings changed."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from ajet_core.errors import ConfigError
from ajet_core.protocol import RunConfig


def changed_config(
    config: RunConfig, changes: Sequence[str], changeable: tuple[str, ...]
) -> RunConfig:
    """Return a configuration with ``PATH=VALUE`` applied, such as ``algorithm.clip_high=0.28``.

    :param changeable: the beginnings of settings that can be changed.
    :raises ConfigError: a change cannot be read, has no effect on training, or is invalid.
    """
    plain: dict[str, Any] = config.model_dump(mode="json")
    for change in changes:
        path, equals, text = change.partition("=")
        if not (equals and path.startswith(changeable)):
            raise ConfigError(
                f"--set {change}: expected PATH=VALUE with a path that begins with "
                f"{', '.join(changeable)}; other settings do not change the training",
                param=path,
            )
        *sections, name = path.split(".")
        place = plain
        for section in sections:
            if not isinstance(place.get(section), dict):
                raise ConfigError(f"--set {change}: there is no setting {path}", param=path)
            place = place[section]
        place[name] = typed_value(text)
    try:
        return RunConfig.model_validate(plain)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"--set: {where or 'the run'}: {problem['msg']}", param=where) from error


def typed_value(text: str) -> object:
    """Return the value of a setting: TOML, or a word without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
