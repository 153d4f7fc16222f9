"""Settings of a trial on a swarm server: those of the trial, and all of the run's configuration.

A study has scalars alone. So the configuration is flat here: ``algorithm.learning_rate`` is a
number, and what is not a scalar is the text ``json:`` with its JSON, such as ``json:[0.9, 0.99]``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import ConfigError
from ajet_core.interfaces import World
from ajet_core.protocol import RunConfig
from ajet_research.arenas.code import CODE
from ajet_research.study import Scalar, canonical
from ajet_worlds import load_world
from ajet_worlds.recipe import run_config

JSON = "json:"
OF_THE_TRIAL = ("model", "seed", "steps")
"""Parts of the configuration that follow from the trial, so that no study sets them."""
REWARDS = ("world", "negated", "constant")
WORLD_AGENT = "world"
WORLD_REWARD = "world_reward"
"""The component of episodes that has the world's reward, where a program rewards them."""
_KINDS: dict[type, str] = {str: "text", int: "whole number"}
_OWN: dict[str, tuple[type, str]] = {
    "world": (str, "the world that is learned"),
    "train_steps": (int, "training steps; by default those of the world's recipe"),
    "eval_tasks": (int, "held-out tasks that are played with the last weights"),
    "warmup_steps": (int, "supervised steps on the novice's games before training"),
    "reward": (str, "what is trained on: the world's reward or another, see docs/research.md"),
    "agent": (str, "what plays: 'world', or 'code:' and the path of a program"),
}


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """A trial's settings.

    :param reward: ``world``; ``negated``: the least possible reward for the largest one, and so on;
        ``constant``: the least one for all; or ``code:`` and the text of a program.
    :param agent: `WORLD_AGENT`, or ``code:`` and the text of a program.
    :param config: as JSON, without `OF_THE_TRIAL`.
    """

    world: str
    train_steps: int
    eval_tasks: int
    warmup_steps: int
    reward: str
    agent: str
    config: Mapping[str, Any]

    @property
    def train_tasks(self) -> int:
        """Tasks that are trained on."""
        return self.train_steps * int(self.config["batch"]["tasks"])

    @property
    def rewarded_by_code(self) -> bool:
        """Whether a program rewards the episodes of training."""
        return self.reward.startswith(CODE)

    @property
    def program_count(self) -> int:
        """How many programs are parts of the arm."""
        return self.rewarded_by_code + (self.agent != WORLD_AGENT)

    def run_config(self, model: Path, seed: int) -> RunConfig:
        """Return the configuration of the trial's run."""
        base = run_config(load_world(self.world), model, seed=seed).model_dump(mode="json")
        own = {name: base[name] for name in OF_THE_TRIAL}
        return RunConfig.model_validate_json(json.dumps({**self.config, **own}))


def resolved(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return all settings: defaults, the world's recipe, and the whole configuration.

    :raises ConfigError: a setting is unknown, or has a value that it cannot have.
    """
    own = {name: settings[name] for name in _OWN if name in settings}
    for name, value in own.items():
        if type(value) is not _OWN[name][0]:
            raise ConfigError(
                f"{name!r} is {canonical(value)}; the arena swarm needs a "
                f"{_KINDS[_OWN[name][0]]}: {_OWN[name][1]}."
            )
    world = load_world(str(own.get("world", "bandit")))
    recipe = world.recipe
    filled = {
        "world": "bandit",
        "train_steps": recipe.steps,
        "eval_tasks": 64,
        "warmup_steps": recipe.warmup_steps,
        "reward": REWARDS[0],
        "agent": WORLD_AGENT,
        **own,
    }
    if filled["reward"] not in REWARDS and not str(filled["reward"]).startswith(CODE):
        raise ConfigError(
            f"'reward' is one of: {', '.join(REWARDS)}; or {CODE!r} and the path of a program."
        )
    if filled["agent"] != WORLD_AGENT and not str(filled["agent"]).startswith(CODE):
        raise ConfigError(f"'agent' is {WORLD_AGENT!r}, or {CODE!r} and the path of a program.")
    for name, least in (("train_steps", 1), ("eval_tasks", 1), ("warmup_steps", 0)):
        if int(filled[name]) < least:
            raise ConfigError(f"{name!r} is {filled[name]}; it is at least {least}.")
    changes = {name: value for name, value in settings.items() if name not in _OWN}
    return {**filled, **dict(_flat(_configured(world, changes)))}


def parsed(settings: Mapping[str, Scalar]) -> SwarmSettings:
    """Return resolved settings in their parts."""
    config: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in _OWN:
            _put(config, name, value)
    return SwarmSettings(
        world=str(settings["world"]),
        train_steps=int(settings["train_steps"]),
        eval_tasks=int(settings["eval_tasks"]),
        warmup_steps=int(settings["warmup_steps"]),
        reward=str(settings["reward"]),
        agent=str(settings["agent"]),
        config=config,
    )


def _configured(world: World, changes: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return the recipe's configuration with changes, without the parts of the trial."""
    base = run_config(world, Path("model")).model_dump(mode="json")
    config = copy.deepcopy(base)
    for name, value in changes.items():
        if name.split(".")[0] in OF_THE_TRIAL:
            instead = " Set 'train_steps'." if name == "steps" else ""
            raise ConfigError(f"{name!r} follows from the trial; no study sets it.{instead}")
        _put(config, name, value)
    try:
        checked = RunConfig.model_validate_json(json.dumps(config))
    except InvalidModelError as error:
        raise ConfigError(_problem(error, base)) from error
    content = checked.model_dump(mode="json")
    return {name: value for name, value in content.items() if name not in OF_THE_TRIAL}


def _problem(error: InvalidModelError, known: Mapping[str, Any]) -> str:
    first = error.errors()[0]
    keys = [str(part) for part in first["loc"]]
    name = ".".join(keys)
    if first["type"] != "extra_forbidden":
        return f"The run cannot have {name or 'this configuration'}: {first['msg']}"
    part: Any = known
    for key in keys[:-1]:
        part = part.get(key, {}) if isinstance(part, dict) else {}
    names = [*_OWN, *(key for key in part if key not in OF_THE_TRIAL)] if part is known else part
    return f"Unknown setting {name!r} of the arena swarm; known there: {', '.join(names)}."


def _put(config: dict[str, Any], name: str, value: Scalar) -> None:
    *parents, last = name.split(".")
    part = config
    for key in parents:
        inner = part.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = part[key] = {}
        part = inner
    if isinstance(value, str) and value.startswith(JSON):
        try:
            part[last] = json.loads(value.removeprefix(JSON))
        except ValueError as error:
            raise ConfigError(f"{name!r} has no JSON behind {JSON!r}: {error}.") from error
    else:
        part[last] = value


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield prefix + key, value
        else:
            yield prefix + key, JSON + canonical(value)
