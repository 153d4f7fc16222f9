"""The settings with which the tiny model walks in `grid_walks`; importing it needs no Gymnasium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from ajet_worlds.gridwalk import SYSTEM_PROMPT, TOOLS

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
"""The system message. It describes the tool as the model knows it."""


def write_walks(directory: Path, names: Sequence[str], seed: int = 0) -> str:
    """Write what the source needs into a directory, and return its name.

    :param names: of the walks.
    :param seed: of them.
    """
    shutil.copy(Path(__file__).parent / "grid_walks.py", directory)
    # JSON strings are strings of TOML. An answer that is too long must not be in another prompt.
    (directory / "ajet.toml").write_text(
        f"[sources.gymnasium]\nsize = {len(names)}\neval_size = 0\n"
        f"system = {json.dumps(SYSTEM)}\n"
        'invalid_action = "end"\ninvalid_reward = -0.5\n'
        f"[sources.gymnasium.options]\nwalks = {seed}\n"
    )
    return "gymnasium:grid_walks:GridWalk-v0"
