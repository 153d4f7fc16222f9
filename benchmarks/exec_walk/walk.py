"""An agent of the standard library alone: it walks to the goal with the tool `move`."""

import json
import os
import urllib.request
from pathlib import Path

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
PARAMETERS = {
    "type": "object",
    "properties": {"direction": {"type": "string", "enum": list(MOVES)}},
    "required": ["direction"],
}
TOOL = {"name": "move", "description": "Move one cell.", "parameters": PARAMETERS}
task = json.loads(Path(os.environ["AJET_TASK"]).read_text())
here, goal, size = task["start"], task["goal"], task["size"]


def look():
    down, right = goal[0] - here[0], goal[1] - here[1]
    parts = [f"{abs(down)} {'down' if down > 0 else 'up'}"] if down else []
    parts += [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
    return "goal is " + " and ".join(parts) if parts else "goal reached"


def ask(messages):
    body = {"model": os.environ["AJET_MODEL"], "messages": messages}
    body["tools"] = [{"type": "function", "function": TOOL}]
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body | {"max_tokens": task["max_tokens"]}).encode(),
        {
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


messages = [{"role": "system", "content": "Walk to the goal."}, {"role": "user", "content": look()}]
moves = []
while len(moves) < task["most_moves"] and here != goal and "invalid" not in moves:
    message = ask(messages)
    messages.append(message)
    for call in message.get("tool_calls") or [None]:
        try:
            direction = json.loads(call["function"]["arguments"])["direction"]
            step = MOVES[direction]
        except (TypeError, ValueError, KeyError):
            moves.append("invalid")
            break
        cell = [here[0] + step[0], here[1] + step[1]]
        here = cell if all(0 <= x < size for x in cell) else here
        moves.append(direction)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": look()})
Path("moves.json").write_text(json.dumps(moves))
