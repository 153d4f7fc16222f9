"""What a program is asked for, case by case, and what it shall return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOWHERE = "http://127.0.0.1:9/v1"
"""The endpoint that programs are made for: nobody listens, so that what is not rerouted fails."""
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
    # An agent with the tool `open_door` is asked, calls it, and says what it found: the text.
    "two_turns": _says_done,
    # The same, streamed: the text put together from the pieces.
    "streaming": _says_done,
    # The model calls the tool twice in one turn: the doors that were opened.
    "parallel_calls": lambda doors: sorted(doors) == ["left", "right"],
    # Without a tool, with `SCHEMA`: the object, as a dict.
    "structured_output": lambda found: found["door"] in DOORS,
    # The same, with the tool, which is called before.
    "structured_with_tools": lambda found: found == {"door": "left"},
    # The model calls the tool with arguments it has not: the text, after it was told.
    "bad_arguments": _says_done,
    # The first call is answered 429, or 500: the text, after the framework's own retry.
    "rate_limited": _says_done,
    "server_error": _says_done,
}
SERVERS = {"structured_output": "real", "structured_with_tools": "checking"}
"""Which server a case is for: ``scripted`` unless it is said here. The model of ``real`` is one, whose engine forces the form;
that of ``checking`` has a script that must fit what is to be forced."""
AGENT = "worker"
"""The name of the agent in all programs, but in cases that are `NAMELESS` in a module."""
FAILING = frozenset({"rate_limited", "server_error"})
"""Cases in which one call of an episode fails."""


def server_of(case: str) -> str:
    """For which server it is."""
    return SERVERS.get(case, "scripted")


def task_text(case: str, name: str) -> str:
    """What the program is asked; every prompt contains it."""
    return f"Open a door and say what is behind it. [{case} {name}]"
