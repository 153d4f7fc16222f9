"""The configuration of a run in a file, as `--run FILE` reads it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from pydantic import ValidationError

from ajet_core.errors import ConfigError
from ajet_core.protocol import RunConfig


def read_run(path: Path) -> RunConfig:
    """Read a run from a TOML file (``.toml``), or from a JSON file.

    :raises ConfigError: the file does not exist or cannot be read, or is not the configuration of
        a run.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        return RunConfig.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(
            f"{path} is not the configuration of a run: {where or 'it'}: {problem['msg']}",
            param=where,
        ) from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist: give the TOML or JSON file with the configuration of a run"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {error}") from error
