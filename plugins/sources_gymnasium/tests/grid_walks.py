"""GridWalk as an environment of Gymnasium, `gymnasium:grid_walks:GridWalk-v0`.

The tiny model answers with calls of a tool, which are texts here. `walk_settings` has the settings
of the source.
"""

from __future__ import annotations

import re
import string
from typing import Any

import gymnasium
from gymnasium import spaces

from ajet_worlds.gridwalk import GridWalk

_CALL = re.compile(r'<tool_call>\s*\{"name": "(\w+)", "arguments": (.*)\}\s*</tool_call>')


class Walk(gymnasium.Env[str, str]):
    """Walk to the goal.

    :param walks: seed of the walks; that of a reset is the number of one.
    """

    action_space: spaces.Space[str] = spaces.Text(1000, min_length=0, charset=string.printable)
    observation_space: spaces.Space[str] = spaces.Text(1000, charset=string.printable)

    def __init__(self, walks: int = 0) -> None:
        self.walks = walks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.walk = GridWalk(f"train-{self.walks}-{seed}")
        return self.walk.observation(), {}

    def step(self, action: str) -> Any:
        call = _CALL.fullmatch(action.strip())
        if call is None:
            self.walk.reject()
        said = "" if call is None else self.walk.call(call[1], call[2])
        reward = self.walk.outcome().reward if self.walk.done else 0.0
        return f"<tool_response>\n{said}\n</tool_response>", reward, self.walk.done, False, {}


gymnasium.register("GridWalk-v0", Walk)
