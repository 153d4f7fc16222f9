"""What a program must do and return in each case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOWHERE = "http://127.0.0.1:9/v1"
"""The programs' endpoint. No server listens there, so calls that are not rerouted fail."""
DOORS = ("left", "middle", "right")
DONE = "I have looked behind it."


def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door not in DOORS:
        raise ValueError(f"there is no door {door!r}")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"door": {"type": "string", "enum": list(DOORS)}},
    "required": ["door"],
    "additionalProperties": False,
}


def _says_done(result: object) -> bool:
    return DONE in str(result)


CASES: dict[str, Callable[[Any], bool]] = {
    # An agent with the tool `open_door` answers, calls it, and reports the result: the text.
    "two_turns": _says_done,
    # The same, streamed: the text assembled from the pieces.
    "streaming": _says_done,
    # The model calls the tool twice in one turn: the opened doors.
    "parallel_calls": lambda doors: sorted(doors) == ["left", "right"],
    # Without a tool, with `SCHEMA`: the object, as a dict.
    "structured_output": lambda found: found["door"] in DOORS,
    # The same, with the tool, which is called before.
    "structured_with_tools": lambda found: found == {"door": "left"},
    # The model calls the tool with wrong arguments: the text, after it got the error.
    "bad_arguments": _says_done,
    # The first call returns 429 or 500: the text, after the framework's own retry.
    "rate_limited": _says_done,
    "server_error": _says_done,
}
SERVERS = {"structured_output": "real", "structured_with_tools": "checking"}
"""The server of a case, ``scripted`` by default.

``real`` has a real model, whose engine enforces the format. ``checking`` has a script that must
match the enforced format."""
AGENT = "worker"
"""The name of the agent in all programs, except in a module's `NAMELESS` cases."""
FAILING = frozenset({"rate_limited", "server_error"})
"""Cases in which one call of an episode fails."""


def server_of(case: str) -> str:
    """Return the server of a case."""
    return SERVERS.get(case, "scripted")


def task_text(case: str, name: str) -> str:
    """Return the task of the program; every prompt contains it."""
    return f"Open a door and say what is behind it. [{case} {name}]"
