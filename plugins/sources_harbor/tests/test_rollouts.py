"""Episodes of Harbor's tasks: with Harbor's agents, and with what goes wrong."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rolling import TASKS, named, rolled_out, says, source

from ajet_core.errors import EnvironmentFailedError
from ajet_core.interfaces import ModelEndpoint
from ajet_testing.scripted_swarm import ScriptedSwarm

FILE_AGENT = "file_agent:FileAgent"
NO_TMUX = "tmux is not installed"


def move(keys: str, *, complete: bool = False) -> str:
    """An answer of a model to terminus-2."""
    commands = [{"keystrokes": keys, "duration": 0.1}] if keys else []
    answer = {"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete}
    return json.dumps(answer)


def bash(command: str) -> str:
    """An answer of a model to mini-swe-agent: a call of its tool."""
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[ScriptedSwarm]:
    replies = (
        says("Are you sure", move("", complete=True)),
        says("answer.txt is written", move("", complete=True)),
        says("(?s)commands.*hello", move("echo hello > answer.txt; echo answer.txt is written\n")),
        says("two words", "hello"),
        says("", "hello"),
    )
    with ScriptedSwarm(tmp_path, replies) as server:
        yield server


@pytest.mark.skipif(not shutil.which("tmux"), reason=NO_TMUX)
async def test_terminus_works_in_a_terminal_that_stays(swarm: ScriptedSwarm) -> None:
    async with source() as opened:
        report = await rolled_out(swarm, opened, [named(opened, "greeting")])
    assert not report.failures
    assert [one.outcome.reward for one in report.outcomes] == [1.0, 1.0]
    counts = [len(swarm.calls(one.episode_id)) for one in swarm.episodes()]
    assert counts == [3, 3]


async def test_an_installed_agent_reaches_its_endpoint_and_nothing_else(tmp_path: Path) -> None:
    program = Path(sys.prefix) / "bin" / "mini-swe-agent"
    if not program.exists():
        pytest.skip("mini-swe-agent is not installed")
    replies = (
        says("was written", bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
        says("", bash("echo hello > /app/answer.txt && echo it was written")),
    )
    settings = {
        "agent": "mini-swe-agent",
        "read_only": (sys.prefix, sys.base_prefix),
        "path": (f"{sys.prefix}/bin",),
    }
    with ScriptedSwarm(tmp_path, replies) as server:
        async with source(**settings) as opened:
            report = await rolled_out(server, opened, [named(opened, "greeting")], each=1)
        assert not report.failures
        assert report.outcomes[0].outcome.reward == 1.0
        (episode,) = server.episodes()
        assert len(server.calls(episode.episode_id)) == 2


async def test_an_agent_that_is_not_in_the_box_is_no_reward() -> None:
    async with source(agent="mini-swe-agent", path=("/nowhere",)) as opened:
        with pytest.raises(EnvironmentFailedError, match="name its directories in read_only"):
            await opened.roll_out(named(opened, "greeting"), unanswered())


async def test_episodes_at_once_have_their_own_files(swarm: ScriptedSwarm) -> None:
    async with source(agent=FILE_AGENT) as opened:
        tasks = list(opened.tasks("train"))
        report = await rolled_out(swarm, opened, tasks, each=2)
    assert not report.failures
    rewards = {task.id: set() for task in tasks}
    for one in report.outcomes:
        rewards[one.task.id].add(one.outcome.reward)
    assert rewards.pop("greeting") == {1.0}
    assert set(map(frozenset, rewards.values())) == {frozenset({0.0})}


async def test_a_fault_of_the_agent_is_graded(swarm: ScriptedSwarm) -> None:
    async with source(agent=FILE_AGENT, agent_options={"fault": "bug"}) as opened:
        report = await rolled_out(swarm, opened, [named(opened, "greeting")], each=1)
    outcome = report.outcomes[0].outcome
    assert (outcome.reward, outcome.metadata["exception"]) == (1.0, "NonZeroAgentExitCodeError")


async def test_an_agent_that_runs_out_of_time_is_graded(swarm: ScriptedSwarm) -> None:
    settings = {"agent": FILE_AGENT, "agent_options": {"fault": "time"}, "timeout_factor": 0.05}
    async with source(**settings) as opened:
        report = await rolled_out(swarm, opened, [named(opened, "greeting")], each=1)
    outcome = report.outcomes[0].outcome
    assert (outcome.reward, outcome.metadata["exception"]) == (1.0, "AgentTimeoutError")


async def test_a_box_that_ends_aborts(swarm: ScriptedSwarm) -> None:
    async with source(agent=FILE_AGENT, agent_options={"fault": "box"}) as opened:
        report = await rolled_out(swarm, opened, [named(opened, "greeting")], each=1)
    assert [type(one.error) for one in report.failures] == [EnvironmentFailedError]
    assert "the sandbox ended" in report.failures[0].reason


async def test_a_model_that_does_not_answer_aborts() -> None:
    async with source(agent=FILE_AGENT) as opened:
        with pytest.raises(EnvironmentFailedError, match="the endpoint of the model failed"):
            await opened.roll_out(named(opened, "greeting"), unanswered())


async def test_kept_files_have_no_key(swarm: ScriptedSwarm, tmp_path: Path) -> None:
    settings = {"agent": FILE_AGENT, "agent_options": {"fault": "key"}, "trials": tmp_path / "kept"}
    async with source(**settings) as opened:
        report = await rolled_out(swarm, opened, [named(opened, "greeting")], each=1)
    key = report.outcomes[0].episode.api_key.encode()
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert any(path.name == "result.json" for path in files)
    assert all(key not in path.read_bytes() for path in files)


async def test_the_verifier_has_neither_key_nor_endpoint_in_its_environment(
    swarm: ScriptedSwarm, tmp_path: Path
) -> None:
    tasks = tmp_path / "tasks"
    shutil.copytree(TASKS / "greeting", tasks / "greeting")
    verifier = tasks / "greeting/tests/test.sh"
    verifier.write_text(
        "#!/bin/bash\n"
        "grep -q OPENAI /app/environ.txt; agent=$?\n"
        "env | grep -q -e OPENAI -e ANTHROPIC; verifier=$?\n"
        'echo "{\\"reward\\": 1, \\"agent\\": $agent, \\"verifier\\": $verifier}"'
        " > /logs/verifier/reward.json\n"
    )
    async with source(tasks, agent=FILE_AGENT, agent_options={"fault": "key"}) as opened:
        report = await rolled_out(swarm, opened, [named(opened, "greeting")], each=1)
    assert report.outcomes[0].outcome.components == {"reward": 1.0, "agent": 0.0, "verifier": 1.0}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "RewardFileNotFoundError"),
        ("echo nan > /logs/verifier/reward.txt", "Non-finite"),
        ("echo well done > /logs/verifier/reward.txt", "Failed to parse"),
        ("pkill -9 -f '^python3 /ajet'", "sandbox"),
        ("sleep 600", "VerifierTimeoutError"),
        ('echo \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json', "none of them is 'reward'"),
    ],
)
async def test_a_verifier_that_fails_is_no_reward(
    script: str, message: str, tmp_path: Path
) -> None:
    shutil.copytree(TASKS / "greeting", tmp_path / "greeting")
    (tmp_path / "greeting/tests/test.sh").write_text(f"#!/bin/bash\n{script}\n")
    async with source(tmp_path, timeout_factor=0.1) as opened:
        with pytest.raises(EnvironmentFailedError, match=message):
            await opened.probe(named(opened, "greeting"), "reference")


def unanswered() -> ModelEndpoint:
    return ModelEndpoint("http://127.0.0.1:9/v1", "no-key")
