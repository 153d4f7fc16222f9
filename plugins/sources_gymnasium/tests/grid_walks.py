"""GridWalk as an environment of Gymnasium, `gymnasium:grid_walks:GridWalk-v0`.

The tiny model answers with calls of a tool, which are texts here: `SYSTEM` describes the tool as
the model knows it.
"""

from __future__ import annotations

import json
import re
import string
from typing import Any

import gymnasium
from gymnasium import spaces

from ajet_worlds.gridwalk import SYSTEM_PROMPT, TOOLS, GridWalk

SYSTEM = f"""{SYSTEM_PROMPT}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{json.dumps(TOOLS[0])}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
_CALL = re.compile(r'<tool_call>\s*\{"name": "(\w+)", "arguments": (.*)\}\s*</tool_call>')


class Walk(gymnasium.Env[str, str]):
    """Walk to the goal."""

    action_space: spaces.Space[str] = spaces.Text(1000, min_length=0, charset=string.printable)
    observation_space: spaces.Space[str] = spaces.Text(1000, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.walk = GridWalk(f"train-0-{seed}")
        return self.walk.observation(), {}

    def step(self, action: str) -> Any:
        call = _CALL.fullmatch(action.strip())
        if call is None:
            self.walk.reject()
        said = "" if call is None else self.walk.call(call[1], call[2])
        reward = self.walk.outcome().reward if self.walk.done else 0.0
        return f"<tool_response>\n{said}\n</tool_response>", reward, self.walk.done, False, {}


gymnasium.register("GridWalk-v0", Walk)
