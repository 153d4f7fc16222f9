"""Reward a walk by the moves that the agent wrote down; it sees the task, but not the agent."""

import json
import os
from pathlib import Path

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
task = json.loads(Path(os.environ["AJET_TASK"]).read_text())
moves = json.loads(Path("moves.json").read_text())
here = task["start"]
for move in moves[: task["most_moves"]]:
    if move not in MOVES or here == task["goal"]:
        break
    cell = [here[0] + MOVES[move][0], here[1] + MOVES[move][1]]
    here = cell if all(0 <= x < task["size"] for x in cell) else here
success = here == task["goal"]
reward = 1.0 if success else -0.5 if "invalid" in moves else 0.0
print(json.dumps({"reward": reward, "success": float(success)}))
