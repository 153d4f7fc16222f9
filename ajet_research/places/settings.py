"""The file that says where trials run."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import ConfigError
from ajet_core.files import read_bytes

_HOST = re.compile(r"[A-Za-z0-9_][\w.@:%\[\]-]*")


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SlurmSettings(_Settings):
    """A Slurm cluster, whose commands are installed on this machine.

    :param options: further options of `sbatch`, by their names in submitit.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    mem: str | None = None
    cpus_per_task: Annotated[int, Field(ge=1)] | None = None
    gpus_per_node: Annotated[int, Field(ge=0)] | None = None
    constraint: str | None = None
    setup: list[str] = []
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        for name in ("time", "job_name", "additional_parameters", "nodes", "ntasks_per_node"):
            if name in self.options:
                raise ValueError(
                    f"options.{name} cannot be set: it follows from the study and its trials"
                )
        if twice := sorted(self.options.keys() & type(self).model_fields.keys()):
            raise ValueError(f"{twice[0]} is a key of [slurm] itself")
        return self


class SshSettings(_Settings):
    """Hosts that are reached with ssh.

    :param slots: trials at a time on each host.
    :param options: further arguments of `ssh`.
    """

    hosts: Annotated[list[str], Field(min_length=1)]
    slots: Annotated[int, Field(ge=1)] = 1
    options: list[str] = []

    @model_validator(mode="after")
    def _check_hosts(self) -> Self:
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{host!r} is not a host, such as 'me@node1'")
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError("a host is listed twice; slots says how many trials it takes")
        return self


class PlaceSettings(_Settings):
    """One place.

    :param python: of the environment with agentjet there; by default, this one.
    :param patience_seconds: without a sign of life, after which an attempt counts as lost.
    :param poll_seconds: between two looks at an attempt.
    """

    slurm: SlurmSettings | None = None
    ssh: SshSettings | None = None
    python: str = sys.executable
    patience_seconds: Annotated[float, Field(ge=5, le=86400)] = 120.0
    poll_seconds: Annotated[float, Field(gt=0, le=600)] = 2.0

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.slurm is None) == (self.ssh is None):
            raise ValueError("one of the tables [slurm] and [ssh] has to be there")
        return self


def read_places(path: Path) -> PlaceSettings:
    """Read a file of places.

    :raises ConfigError: it cannot be read, or is invalid; the message names the key.
    """
    try:
        table = tomllib.loads(read_bytes(path).decode("utf-8"))
        return PlaceSettings.model_validate(table, strict=True)
    except InvalidModelError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{path}: {where + ': ' if where else ''}{said}") from None
    except FileNotFoundError:
        raise ConfigError(f"There is no file {path}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
