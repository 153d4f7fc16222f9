"""GridWalk: a walk that a tiny model learns from scratch on one CPU core.

An agent on a 4 x 4 grid walks to a goal with one tool, ``move(direction)``. Every reply states the
relative position of the goal ("goal is 2 down and 1 left"), so a right move can always be read off
the last message. This also tests multi-turn training: the reward comes at the end, but the moves
that earned it are spread over the conversation.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

__all__ = [
    "DIRECTIONS",
    "GOAL_REWARD",
    "GRID_SIZE",
    "INVALID_REWARD",
    "MAX_DISTANCE",
    "MAX_MOVES",
    "MIN_DISTANCE",
    "SYSTEM_PROMPT",
    "TOOLS",
    "Cell",
    "GridWalk",
    "Outcome",
    "directions_in",
    "distance",
    "read_direction",
]

GRID_SIZE = 4
MAX_MOVES = 6
MIN_DISTANCE = 2
MAX_DISTANCE = 4

GOAL_REWARD = 1.0
INVALID_REWARD = -0.5

DIRECTIONS: dict[str, tuple[int, int]] = {
    "up": (-1, 0),
    "down": (1, 0),
    "left": (0, -1),
    "right": (0, 1),
}

SYSTEM_PROMPT = "Walk to the goal."

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Move one cell.",
            "parameters": {
                "type": "object",
                "properties": {"direction": {"type": "string", "enum": list(DIRECTIONS)}},
                "required": ["direction"],
            },
        },
    }
]
"""The tool of the task, in the form of the OpenAI chat completions API."""

Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a walk.

    :param reward: 1 on the goal, -0.5 after an answer without a valid move, else 0.
    :param success: whether the goal was reached.
    :param moves: number of moves.
    :param invalid: whether the walk ended with an answer without a valid move.
    """

    reward: float
    success: bool
    moves: int
    invalid: bool


class GridWalk:
    """One walk. A task id gives the same start and goal in any process.

    :ivar done: whether the walk is over: goal reached, moves used up, or an invalid answer.
    """

    def __init__(self, task_id: str) -> None:
        # Random hashes a str seed itself (SHA-512), so this does not depend on PYTHONHASHSEED.
        rng = random.Random(f"gridwalk/{task_id}")  # noqa: S311 - a puzzle, not a secret
        cells = [(row, column) for row in range(GRID_SIZE) for column in range(GRID_SIZE)]
        while True:
            start, goal = rng.sample(cells, 2)
            if MIN_DISTANCE <= distance(start, goal) <= MAX_DISTANCE:
                break
        self.task_id = task_id
        self.position: Cell = start
        self.goal: Cell = goal
        self.moves = 0
        self.done = False
        self._invalid = False

    def messages(self) -> list[dict[str, Any]]:
        """Return the first messages of the conversation."""
        return [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": self.observation()},
        ]

    def observation(self) -> str:
        """Return the position of the goal relative to the current position."""
        down = self.goal[0] - self.position[0]
        right = self.goal[1] - self.position[1]
        parts = []
        if down:
            parts.append(f"{abs(down)} {'down' if down > 0 else 'up'}")
        if right:
            parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
        return "goal is " + " and ".join(parts)

    def good_directions(self) -> list[str]:
        """Return the directions that lead closer to the goal."""
        here = distance(self.position, self.goal)
        return [d for d in DIRECTIONS if distance(self._after(d), self.goal) < here]

    def call(self, name: str, arguments: str) -> str:
        """Execute a tool call of the model, and return the tool's reply.

        A call of another tool, arguments that are not JSON, or an unknown direction end the walk.
        Later calls of the same answer change nothing.
        """
        if self.done:
            return "the walk is over"
        direction = read_direction(name, arguments)
        if direction is None:
            self.reject()
            return "invalid move"
        return self.move(direction)

    def move(self, direction: str) -> str:
        """Move one cell, or stay at the edge of the grid, and return the tool's reply.

        :raises RuntimeError: the walk is over.
        """
        if self.done:
            raise RuntimeError(f"the walk of task {self.task_id!r} is over: no more moves")
        self.position = self._after(direction)
        self.moves += 1
        if self.position == self.goal:
            self.done = True
            return "goal reached"
        self.done = self.moves >= MAX_MOVES
        return self.observation()

    def reject(self) -> None:
        """End the walk because the model's answer has no valid move."""
        self.done = True
        self._invalid = True

    def outcome(self) -> Outcome:
        """Return reward and success so far."""
        success = self.position == self.goal
        reward = INVALID_REWARD if self._invalid else GOAL_REWARD if success else 0.0
        return Outcome(reward=reward, success=success, moves=self.moves, invalid=self._invalid)

    def _after(self, direction: str) -> Cell:
        row, column = DIRECTIONS[direction]
        cell = (self.position[0] + row, self.position[1] + column)
        return cell if all(0 <= x < GRID_SIZE for x in cell) else self.position


def read_direction(name: str, arguments: str) -> str | None:
    """Return the direction of a tool call, or None if it is not valid."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return None
    direction = parsed.get("direction") if isinstance(parsed, dict) else None
    usable = name == "move" and isinstance(direction, str) and direction in DIRECTIONS
    return direction if usable else None


def directions_in(observation: str) -> list[str]:
    """Return the directions in an observation, in the order of `DIRECTIONS`."""
    words = observation.split()
    return [direction for direction in DIRECTIONS if direction in words]


def distance(a: Cell, b: Cell) -> int:
    """Return the number of moves between two cells."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])
