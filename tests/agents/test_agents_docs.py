"""The examples of the pages about agents, judges and adapters, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

pytestmark = pytest.mark.processes

DOCS = Path(__file__).parents[2] / "docs"
ADAPTERS = DOCS / "agent-adapters.md"
SAYS = (ScriptedReply(prompt="", says=("apple<|im_end|>",)),)


def example(page: str, name: str) -> dict[str, Any]:
    """The names that an example defines."""
    path = DOCS / page
    found = re.search(
        rf"<!-- example: {name} -->\n```python\n(.*?)```", path.read_text(), re.DOTALL
    )
    assert found is not None
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(found.group(1), str(path), "exec"), scope)
    return scope


def test_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"tasks": 8, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path, SAYS, batch=batch) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        report = example("agents.md", "agents")["main"]()
    assert len(report.outcomes) == 2 * 8 * 2
    assert report.reward_mean == 1 / 8


def test_the_example_of_readers_and_judges_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(f'{{"question": "1 + {n}?", "answer": {1 + n}}}\n' for n in range(8)))
    says = (ScriptedReply(prompt="", says=("1 + 1 is 2.<|im_end|>",)),)
    batch = {"tasks": 8, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path, says, batch=batch) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        report = example("judges.md", "registered")["main"](str(data))
    assert len(report.outcomes) == 8 * 2
    assert report.reward_mean == 1 / 8


PROGRAM = """
from boxes import Agent
from tests.agents.plain import open_door

planner = Agent("planner")
worker = Agent("worker", {"open_door": open_door})


async def play(task):
    advice = await planner.clone(history=[]).run(f"Which door, {task}?")
    return await worker.clone(history=[]).run(f"{task}: {advice}")
"""


def install(directory: Path) -> dict[str, str]:
    """Install the example of an adapter; returns variables with which it is used."""
    files = dict(
        re.findall(
            r"<!-- example: ([\w/]+\.\w+) -->\n```\w+\n(.*?)```", ADAPTERS.read_text(), re.DOTALL
        )
    )
    assert len(files) == 4
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    info = directory / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    (directory / "boxes.py").write_text((DOCS.parent / "tests/agents/boxes.py").read_text())
    (directory / "program.py").write_text(PROGRAM)
    (directory / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    return {"PYTHONPATH": f"{directory}:{DOCS.parent}", "COLUMNS": "200"}


def run(directory: Path, variables: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=directory,
        env={**variables, "HOME": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_example_of_an_adapter_passes_the_suite(tmp_path: Path) -> None:
    variables = install(tmp_path)
    (tmp_path / "ajet.toml").write_text("[agents.boxes]\nmax_turns = 5\n")
    checked = run(tmp_path, variables, "ajet_cli.main", "plugins", "--check", "boxes")
    assert re.search(r"created +agent:boxes +agents of the framework boxes", checked)
    output = run(tmp_path, variables, "pytest", "-p", "ajet_testing.conformance", "test_boxes.py")
    asynchronous = "skipped: this framework is asynchronous"
    listed = [line.strip() for line in output.splitlines() if line.startswith("  test_")]
    assert listed == [
        f"test_an_agent_that_has_ended_makes_no_further_calls_in_its_thread: {asynchronous}",
        f"test_threads_do_not_meet: {asynchronous}",
    ]


def test_the_example_of_an_adapter_has_a_readable_length() -> None:
    (source,) = re.findall(
        r"<!-- example: ajet_boxes/adapter.py -->\n```python\n(.*?)```",
        ADAPTERS.read_text(),
        re.DOTALL,
    )
    assert 30 <= len(source.splitlines()) <= 60
