"""The task itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_worlds.gridwalk import (
    DIRECTIONS,
    GRID_SIZE,
    MAX_MOVES,
    TOOLS,
    GridWalk,
    distance,
)

TASKS = st.integers(0, 10_000).map(lambda n: f"task-{n}")
DIRECTION = st.sampled_from(list(DIRECTIONS))


def placed(start: tuple[int, int], goal: tuple[int, int]) -> GridWalk:
    walk = GridWalk("any")
    walk.position, walk.goal = start, goal
    return walk


def test_start_and_goal_are_two_to_four_moves_apart_and_cover_the_grid() -> None:
    walks = [GridWalk(f"t{n}") for n in range(2000)]
    assert {distance(w.position, w.goal) for w in walks} == {2, 3, 4}
    cells = {(r, c) for r in range(GRID_SIZE) for c in range(GRID_SIZE)}
    assert {w.position for w in walks} == cells
    assert {w.goal for w in walks} == cells


@pytest.mark.processes
def test_a_task_is_the_same_in_every_process() -> None:
    code = "from ajet_worlds.gridwalk import GridWalk; w = GridWalk('x'); print(w.position, w.goal)"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    walk = GridWalk("x")
    assert shown == {f"{walk.position} {walk.goal}\n"}


@pytest.mark.parametrize(
    ("start", "goal", "text"),
    [
        ((0, 1), (2, 0), "goal is 2 down and 1 left"),
        ((3, 0), (1, 1), "goal is 2 up and 1 right"),
        ((1, 1), (1, 3), "goal is 2 right"),
        ((2, 2), (0, 2), "goal is 2 up"),
    ],
)
def test_observations(start: tuple[int, int], goal: tuple[int, int], text: str) -> None:
    assert placed(start, goal).observation() == text


def test_every_place_and_direction() -> None:
    cells = [(r, c) for r in range(GRID_SIZE) for c in range(GRID_SIZE)]
    for start in cells:
        for goal in cells:
            if start == goal:
                continue
            for direction, (row, column) in DIRECTIONS.items():
                walk = placed(start, goal)
                good = walk.good_directions()
                reply = walk.move(direction)
                wanted = (start[0] + row, start[1] + column)
                assert walk.position == (wanted if wanted in cells else start)
                nearer = distance(walk.position, goal) < distance(start, goal)
                assert (direction in good) == nearer
                assert walk.done == (walk.position == goal)
                assert reply == ("goal reached" if walk.done else walk.observation())


@given(TASKS)
def test_good_directions_lead_to_the_goal(task: str) -> None:
    walk = GridWalk(task)
    needed = distance(walk.position, walk.goal)
    while not walk.done:
        walk.move(walk.good_directions()[0])
    outcome = walk.outcome()
    assert (outcome.reward, outcome.success, outcome.moves) == (1.0, True, needed)


@given(TASKS, st.lists(DIRECTION, min_size=MAX_MOVES, max_size=MAX_MOVES))
def test_a_walk_ends_at_the_goal_or_after_six_moves(task: str, moves: list[str]) -> None:
    walk = GridWalk(task)
    for direction in moves:
        if not walk.done:
            walk.move(direction)
    outcome = walk.outcome()
    assert walk.done
    assert outcome.success == (walk.position == walk.goal)
    assert outcome.reward == float(outcome.success)
    assert not outcome.invalid
    with pytest.raises(RuntimeError, match="is over"):
        walk.move("up")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("move", "not json"),
        ("move", "[]"),
        ("move", "{}"),
        ("move", '{"direction": "north"}'),
        ("move", '{"direction": ["up"]}'),
        ("jump", '{"direction": "up"}'),
    ],
)
def test_an_unusable_call_ends_the_walk(name: str, arguments: str) -> None:
    walk = placed((0, 0), (2, 0))
    assert walk.call(name, arguments) == "invalid move"
    outcome = walk.outcome()
    assert (walk.done, outcome.reward, outcome.success, outcome.invalid) == (
        True,
        -0.5,
        False,
        True,
    )


def test_calls_after_the_end_change_nothing() -> None:
    walk = placed((0, 0), (1, 0))
    assert walk.call("move", json.dumps({"direction": "down"})) == "goal reached"
    assert walk.call("jump", "") == "the walk is over"
    assert walk.outcome().reward == 1.0


def test_the_tool_names_all_directions() -> None:
    (tool,) = TOOLS
    assert tool["function"]["parameters"]["properties"]["direction"]["enum"] == list(DIRECTIONS)
