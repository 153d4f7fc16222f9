"""Endpoint profiles: data that say how a program learns where its model is."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import ConfigError, UnreadableFileError


class EndpointProfile(BaseModel):
    """How one kind of program learns where its model is.

    :param about: which programs it is for.
    :param status: ``tested`` only with the versions in `run_with`.
    :param command: the program's command, as it is given to ``ajet exec``.
    :param agents: the program's side calls, such as those for titles, which are not trained: by
        name, a text that their system prompts contain.
    :param environ: variables, with placeholders.
    :param files: contents of files with placeholders, by path in the program's HOME.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str
    status: Literal["tested", "untested"]
    run_with: str = ""
    command: str = ""
    notes: str = ""
    agents: Mapping[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    environ: Mapping[str, str] = Field(default_factory=dict)
    files: Mapping[str, str] = Field(default_factory=dict)


class _ProfileFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
    profiles: Mapping[str, EndpointProfile]


@functools.cache
def load_profiles(path: Path | None = None) -> Mapping[str, EndpointProfile]:
    """Return profiles by name: those of agentjet, or those of a file of the same form.

    :raises UnreadableFileError: the file is not TOML.
    :raises ConfigError: it has another form.
    """
    source = files("ajet_exec") / "profiles.toml" if path is None else path
    try:
        content = tomllib.loads(source.read_text(encoding="utf-8"))
        return _ProfileFile.model_validate(content).profiles
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"cannot read the profiles of {source}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{source}: {where}: {first['msg']}", param=where) from error


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace ``{name}`` by its value for each known name; all other braces stay as they are.

    Values are not searched for placeholders.
    """
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda match: values[match[1]], text) if values else text


def introduced(profile: EndpointProfile, secret: Mapping[str, str], home: Path) -> dict[str, str]:
    """Write the files of a profile into a program's HOME, and return its variables.

    :param secret: by name of a placeholder, such as ``base_url``, ``api_key`` and ``model``.
    """
    for name, content in profile.files.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(filled(content.lstrip("\n"), secret), encoding="utf-8")
    return {key: filled(text, secret) for key, text in profile.environ.items()}
