"""Settings of the source ``harbor``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class HarborSettings(ComponentSettings):
    """:param agent: a name of Harbor's, such as ``terminus-2``, or ``MODULE:CLASS``.

    :param agent_options: the agent's own options, as ``--ak`` of Harbor.
    :param agent_environ: more variables for the agent, which the verifier does not get.
    :param profile: how an agent in the environment gets its endpoint: a profile of ``ajet exec``;
        "" is the one for the agent.
    :param model: the name of the model as the agent gets it, with ``{model}``; "" is the usual one.
    :param install: whether Harbor installs the agent in each environment. None: only if the
        environment is not ``sandbox``, which has no network.
    :param environment: ``sandbox``, a name of Harbor's, such as ``podman``, or ``MODULE:CLASS``.
    :param environment_options: options of an environment of Harbor's, as ``--ek``.
    :param sandbox: the sandbox of the environment ``sandbox``.
    :param sandbox_settings: settings of this sandbox.
    :param read_only: paths of the host that the sandbox has too, such as an agent's installation.
    :param path: directories of the sandbox in which programs are searched first.
    :param run_steps: whether the sandbox runs ``RUN`` of a task's Dockerfile.
    :param python: the interpreter in the sandbox, which runs the commands.
    :param reward: the key in ``reward.json`` that is the reward; others are its components.
    :param timeout_factor: multiplies all time limits of tasks.
    :param max_episodes: how many episodes there are at a time; None does not limit them.
    :param trials: where the files of trials are kept; None keeps none. The key is masked in them.
    """

    agent: str = "terminus-2"
    agent_options: Mapping[str, Any] = Field(default_factory=dict)
    agent_environ: Mapping[str, str] = Field(default_factory=dict)
    profile: str = ""
    model: str = ""
    install: bool | None = None
    environment: str = "sandbox"
    environment_options: Mapping[str, Any] = Field(default_factory=dict)
    sandbox: str = "bubblewrap"
    sandbox_settings: Mapping[str, Any] = Field(default_factory=dict)
    read_only: tuple[Path, ...] = ()
    path: tuple[str, ...] = ()
    run_steps: bool = True
    python: str = "python3"
    reward: str = "reward"
    timeout_factor: float = Field(default=1.0, gt=0)
    max_episodes: int | None = Field(default=None, ge=1)
    trials: Path | None = None
