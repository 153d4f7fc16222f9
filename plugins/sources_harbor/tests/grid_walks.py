"""GridWalk as task directories of Harbor: the program `move` walks in the environment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ajet_worlds.gridwalk import GRID_SIZE, MAX_MOVES, GridWalk

_TOML = """\
version = "1.0"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 120.0
"""
_DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY walk.sh move.sh /app/\n"
_WALK = f"""\
row=ROW column=COLUMN goal_row=GOAL_ROW goal_column=GOAL_COLUMN moves=0 invalid=0
for move in $(cat /app/moves 2>/dev/null); do
  [ $moves -lt {MAX_MOVES} ] || break
  if [ $row = $goal_row ] && [ $column = $goal_column ]; then break; fi
  moves=$((moves + 1))
  case $move in
    up) [ $row -eq 0 ] || row=$((row - 1)) ;;
    down) [ $row -eq {GRID_SIZE - 1} ] || row=$((row + 1)) ;;
    left) [ $column -eq 0 ] || column=$((column - 1)) ;;
    right) [ $column -eq {GRID_SIZE - 1} ] || column=$((column + 1)) ;;
    *) invalid=1; break ;;
  esac
done
down=$((goal_row - row)) right=$((goal_column - column))
"""
_MOVE = """\
echo "$1" >> /app/moves
. /app/walk.sh
parts=
if [ $down -gt 0 ]; then parts="$down down"; elif [ $down -lt 0 ]; then parts="$((-down)) up"; fi
if [ $right -ne 0 ] && [ -n "$parts" ]; then parts="$parts and "; fi
if [ $right -gt 0 ]; then parts="$parts$right right"; fi
if [ $right -lt 0 ]; then parts="$parts$((-right)) left"; fi
if [ -n "$parts" ]; then echo "goal is $parts"; else echo "goal reached"; fi
"""
# It has a copy of its own, because the agent may have changed the other one.
_TEST = """\
. /tests/walk.sh
reward=0 success=0
if [ $down = 0 ] && [ $right = 0 ]; then reward=1 success=1; fi
if [ $invalid = 1 ]; then reward=-0.5; fi
echo "{\\"reward\\": $reward, \\"success\\": $success}" > /logs/verifier/reward.json
"""
_SOLVE = "for move in MOVES; do sh /app/move.sh $move; done\n"


def write_walks(directory: Path, names: Iterable[str]) -> None:
    """Write a task directory for each walk."""
    for name in names:
        walk = GridWalk(name)
        (row, column), (goal_row, goal_column) = walk.position, walk.goal
        moves = ["down" if goal_row > row else "up"] * abs(goal_row - row)
        moves += ["right" if goal_column > column else "left"] * abs(goal_column - column)
        steps = _WALK.replace("GOAL_ROW", str(goal_row)).replace("GOAL_COLUMN", str(goal_column))
        steps = steps.replace("ROW", str(row)).replace("COLUMN", str(column))
        files = {
            "task.toml": _TOML,
            "instruction.md": walk.observation() + "\n",
            "environment/Dockerfile": _DOCKERFILE,
            "environment/walk.sh": steps,
            "environment/move.sh": _MOVE,
            "tests/walk.sh": steps,
            "tests/test.sh": "#!/bin/bash\n" + _TEST,
            "solution/solve.sh": "#!/bin/bash\n" + _SOLVE.replace("MOVES", " ".join(moves)),
        }
        for path, text in files.items():
            file = directory / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
