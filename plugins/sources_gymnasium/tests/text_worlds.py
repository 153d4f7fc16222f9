"""Environments of our own, which `gymnasium:text_worlds:ID` imports."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from gymnasium import spaces

WORDS = ("tree", "lake", "hill", "moon")


class Echo(gymnasium.Env[str, str]):
    """Say the word that is shown.

    It ends after one action.
    """

    action_space: spaces.Space[str] = spaces.Text(8, charset=string.ascii_lowercase)
    observation_space: spaces.Space[str] = spaces.Text(40)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.fault == "reset":
            raise RuntimeError("the reset has a bug")
        self.word = (options or {}).get("word") or WORDS[int(self.np_random.integers(4))]
        return f"Say {self.word}.", {}

    def step(self, action: str) -> Any:
        if self.fault == "step":
            raise RuntimeError("the step has a bug")
        reward = float("nan") if self.fault == "nan" else float(action == self.word)
        return "Thanks.", reward, True, False, {}


class Torque(Echo):
    action_space = spaces.Box(-1.0, 1.0)  # type: ignore[assignment]


class Shifted(gymnasium.Env[int, int]):
    """Discrete actions that do not begin at 0: the reward is the action."""

    action_space = spaces.Discrete(3, start=-1)  # type: ignore[assignment]
    observation_space = spaces.Discrete(2)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> Any:
        return 1, float(action), False, True, {}


for kind in (Echo, Torque, Shifted):
    gymnasium.register(f"{kind.__name__}-v0", kind)
