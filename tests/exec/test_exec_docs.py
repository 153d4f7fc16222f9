"""`docs/exec.md` is true: its files and its commands run, and so does its program."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentjet.client import SwarmClient
from ajet_cli.main import cli as ajet
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.exec.usable import no_bubblewrap

TEXT = (Path(__file__).parents[2] / "docs/exec.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
PARIS = (ScriptedReply(prompt="", says=("Paris<|im_end|>",)),)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap()),
]


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def commands() -> list[list[str]]:
    """The commands of the page, without their first word."""
    lines = [text.replace("\\\n", " ") for text in blocks("") if text.startswith("ajet exec")]
    return [shlex.split(line)[1:] for line in lines]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedSwarm]:
    """The files of the page in the working directory, and a server whose model knows the answer."""
    # Sandboxes have users of their own.
    tmp_path.chmod(0o755)
    agent, grade, *_ = blocks("python")
    for name, text in (
        ("tasks.jsonl", blocks("json")[0]),
        ("files/agent.py", agent),
        ("tests/grade.py", grade),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    batch = {"tasks": 1, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path / "swarm", PARIS, batch=batch) as swarm:
        monkeypatch.setenv("AJET_CLIENT__URL", swarm.url)
        monkeypatch.setenv("AJET_CLIENT__TOKEN", swarm.token)
        yield swarm


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(ajet, arguments)
    assert result.exit_code == 0, result.output
    return result


def test_its_commands_train_and_show_an_episode(example: ScriptedSwarm, tmp_path: Path) -> None:
    train, once = commands()
    run(*train)
    assert [episode.reward for episode in example.episodes()] == [1.0, 1.0]
    # They have ended: nothing is left to do.
    said = run(train[0], "--resume", *train[1:]).output
    assert len(example.episodes()) == 2, said
    shown = run(*once).output
    for part in (
        "--- limits\nmemory: unlimited; ",
        "--- command",
        "--- environment",
        "--- stdout of the reward",
        "--- reward\n1 ",
    ):
        assert part in shown
    (key,) = re.findall(r'"OPENAI_API_KEY": "([^"]*)"', shown)
    assert key == "***"
    (kept,) = (tmp_path / "runs/exec/episodes").iterdir()
    assert (kept / "work/answer.txt").read_text() == "Paris"


def test_its_program_trains(example: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_URL", example.url)
    monkeypatch.setenv("AJET_TOKEN", example.token)
    program = next(text for text in blocks("python") if "async def main" in text)
    program = program.partition("if __name__")[0]
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(program, "exec.md", "exec"), scope)
    asyncio.run(scope["main"]())
    assert [episode.reward for episode in example.episodes()] == [1.0, 1.0]


def test_limits_and_temperature_of_the_program(example: ScriptedSwarm, tmp_path: Path) -> None:
    greedy = (tmp_path / "files/agent.py").read_text()
    asks = greedy.replace("sys.argv[1]}]}", 'sys.argv[1]}], "temperature": 0}')
    assert asks != greedy
    # It asks until it is refused.
    (tmp_path / "files/agent.py").write_text(
        "import urllib.error\ntry:\n  while True:\n"
        + "".join(f"    {line}\n" for line in asks.splitlines())
        + "except urllib.error.HTTPError as error:\n  print(error.code)\n"
    )
    (command, _) = commands()
    shown = run(
        command[0], "--once", "--max-calls", "3", "--temperature", "0.7", *command[1:]
    ).output
    facts = json.loads(shown.partition("--- result\n")[2].splitlines()[0])
    assert (facts["calls"], facts["limit"], facts["exit_code"]) == (3, "call_limit", 0)
    assert "--- stdout\n403" in shown
    (episode,) = example.episodes()
    assert {call.temperature for call in example.calls(episode.episode_id)} == {0.7}


def test_once_starts_the_run_that_it_names(example: ScriptedSwarm, tmp_path: Path) -> None:
    with SwarmClient(example.url, example.tokens.control) as control:
        control.stop_engine()
    (tmp_path / "run.json").write_text(example.config.model_dump_json())
    _, once = commands()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AJET_CLIENT__TOKEN", example.tokens.control)
        shown = run(once[0], "--run", "run.json", *once[1:]).output
    assert "--- reward\n1 " in shown


def test_why_an_episode_has_no_reward_is_shown_whole(example: ScriptedSwarm) -> None:
    """The last line of a program's stderr alone does not name the program."""
    Path("tests/grade.py").write_text("raise SystemExit('first line\\nlast line')")
    _, once = commands()
    shown = CliRunner().invoke(ajet, once)
    assert shown.exit_code == 1
    aborted = shown.output.partition("--- aborted\n")[2]
    for part in ("the reward command ended with status 1", "first line", "last line"):
        assert part in aborted


def test_a_task_without_its_prompt_is_refused(example: ScriptedSwarm) -> None:
    Path("tasks.jsonl").write_text('{"id": "a", "question": "Where?", "answer": "Paris"}\n')
    train, once = commands()
    for command in (train, once):
        refused = CliRunner().invoke(ajet, command)
        assert "task 'a' has no field 'prompt' for the prompt, only" in refused.output
    run(once[0], "--prompt-field", "question", *once[1:])
    # A program that reads the task itself needs no prompt.
    run(*once[:-1], "Where?")


def test_what_is_missing_is_named(example: ScriptedSwarm) -> None:
    (command, _) = commands()
    at = command.index("--")

    def with_option(*option: str) -> list[str]:
        return [*command[:at], *option, *command[at:]]

    for arguments, said in (
        (command[:at], "give the program after --"),
        (with_option("--profile", "x"), "there is no profile 'x'"),
        (with_option("--limit", "memory=lots"), "--limit memory=lots: give a number"),
        (with_option("--disk", "lots"), "--disk=lots: give a number, such as 4G"),
        (with_option("--limit", "size=1"), "--limit size=1: give"),
        (
            with_option("--box", "none", "--limit", "processes=8"),
            "--limit processes=8: this sandbox cannot limit processes",
        ),
        (with_option("--allow-host", "https://pypi.org/simple"), "is not HOST or HOST:PORT"),
        (with_option("--box", "cardboard"), "cardboard"),
        (with_option("--files", "nowhere"), "nowhere"),
        (with_option("--reward", "no_module:f"), "cannot be imported"),
    ):
        result = CliRunner().invoke(ajet, arguments)
        assert result.exit_code != 0, arguments
        assert said in result.output + str(result.exception), result.output
    assert example.episodes() == []
