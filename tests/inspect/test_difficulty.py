"""``ajet difficulty``: success rates of tasks over the steps of a run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from agentjet import train, trainable
from ajet_cli.inspect.difficulty import difficulty_steps, picture, shares
from ajet_cli.main import cli
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import REPLIES
from tests.agents import plain

SVG = "{http://www.w3.org/2000/svg}"


def test_rates_are_scaled_and_all_tasks_are_kept() -> None:
    rewards = [(2, "a", 3.0), (1, "a", -1.0), (1, "a", -1.0), (1, "b", 1.0), (1, "b", -1.0)]
    first, second = difficulty_steps(rewards)
    assert (first.step, list(first.batch), list(first.known)) == (1, [0.0, 0.25], [0.0, 0.25])
    assert (second.step, list(second.batch), list(second.known)) == (2, [1.0], [1.0, 0.25])


def test_equal_rewards_have_no_scale() -> None:
    assert list(difficulty_steps([(1, "a", 5.0), (1, "b", 5.0)])[0].batch) == [0.0, 0.0]
    assert difficulty_steps([]) == []


def test_shares_are_of_all_tasks() -> None:
    assert shares([0.0, 0.05, 0.95, 1.0], 10) == [0.5, *[0.0] * 8, 0.5]
    # The rates of four episodes have a range each.
    assert shares([0.0, 0.25, 0.5, 0.75, 1.0], 5) == [0.2] * 5


@pytest.mark.parametrize("steps", [1, 3, 500])
def test_the_picture_has_every_share(steps: int) -> None:
    draws = random.Random(1)
    rewards = [
        (step, f"t{task}", float(draws.random() < step / steps))
        for step in range(1, steps + 1)
        for task in range(4)
        for _ in range(4)
    ]
    root = ElementTree.fromstring(picture(difficulty_steps(rewards), "<a & b>"))
    assert root.find(f"{SVG}text").text == "<a & b>"
    cells = [cell for cell in root.iter(f"{SVG}rect") if cell.get("fill-opacity")]
    shown: dict[tuple[bool, str], float] = {}
    for cell in cells:
        place = (float(cell.get("y", "")) < 226, cell.get("x", ""))
        shown[place] = shown.get(place, 0.0) + float(cell.get("fill-opacity", "")) ** 2
    # In each column of both panels, the shares are those of all tasks.
    assert len(shown) == 2 * min(steps, 160)
    assert all(total == pytest.approx(1.0, abs=0.01) for total in shown.values())
    for line in root.iter(f"{SVG}polyline"):
        assert len(line.get("points", "").split()) == min(steps, 160)


def ajet(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.mark.processes
def test_a_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(100))

    def reward(task: str, _: object) -> float:
        return 1.0 if task == "easy" else float(next(turns) % 2)

    with ScriptedSwarm(tmp_path / "swarm", REPLIES) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        train(trainable(plain.play, reward=reward), ["easy", "some"], progress=False)
    (note,) = (tmp_path / "swarm").rglob("store.json")
    run, out = note.parent, tmp_path / "difficulty.svg"
    shown = ajet("difficulty", str(run), "--out", str(out))
    assert shown.exit_code == 0, shown.output
    rows = [line.split() for line in shown.output.splitlines()[1:]]
    assert ["1", "2", "0", "1", "1", "0.75", "2"] in rows
    assert ElementTree.fromstring(out.read_text()).tag == f"{SVG}svg"
    steps = json.loads(ajet("difficulty", str(run), "--json").output)
    assert sorted(steps[0]["batch"]) == [0.5, 1.0]
