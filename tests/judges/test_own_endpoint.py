"""Calls of judges that ask a model are never part of an episode, wherever the judge runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentjet import AsyncSwarmClient, SwarmClient, train, trainable
from agentjet.judges import (
    ChoiceCriterion,
    RankingJudge,
    RankingJudgeSettings,
    RubricJudge,
    RubricJudgeSettings,
)
from agentjet.judges.scorers import AutoevalsJudge, AutoevalsJudgeSettings
from ajet_cli.main import cli as ajet
from ajet_core.errors import ConfigError
from ajet_core.interfaces import Task
from ajet_sources import load_source
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.sources.training import train_all
from ajet_testing.suites.agent_suite import REPLIES
from tests.agents import plain
from tests.judges.test_scorers import choice

pytestmark = pytest.mark.processes

CALLS = 3
"""Model calls of an episode of the program."""


def verdict(call: EndpointCall) -> Any:
    """Answer what any of the judges asks."""
    if "tools" in call.body:
        return choice("C")
    schema = call.body["response_format"]["json_schema"]["schema"]["properties"]
    if "order" in schema:
        return json.dumps({"reason": "", "order": schema["order"]["items"]["enum"]})
    return json.dumps({name: {"reason": "", "choice": "yes"} for name in schema})


@pytest.fixture
def judging() -> Iterator[PlainEndpoint]:
    with PlainEndpoint(verdict) as endpoint:
        yield endpoint


def rubric(url: str, **settings: Any) -> RubricJudge:
    criteria = {"good": ChoiceCriterion(question="Is it good?")}
    given = {"base_url": url, "model": "m", "api_key_env": "", **settings}
    return RubricJudge(RubricJudgeSettings(criteria=criteria, **given))


def ranking(url: str, **settings: Any) -> Callable[[Any, Any], Any]:
    given = {"base_url": url, "model": "m", "api_key_env": "", **settings}
    judge = RankingJudge(RankingJudgeSettings(**given))
    return lambda task, result: judge(task, [result, "another"])


def scorer(url: str, **settings: Any) -> AutoevalsJudge:
    given = {"base_url": url, "model": "m", "api_key_env": "", **settings}
    arguments = {"input": "question", "expected": "question"}
    return AutoevalsJudge(AutoevalsJudgeSettings(scorer="Factuality", arguments=arguments, **given))


JUDGES: Sequence[Callable[..., Any]] = [rubric, ranking, scorer]


def swarm_in(directory: Path, tasks: int) -> ScriptedSwarm:
    return ScriptedSwarm(directory, REPLIES, batch={"tasks": tasks, "episodes_per_task": 2})


def assert_apart(swarm: ScriptedSwarm, judging: PlainEndpoint) -> None:
    """The episodes have the calls of the program alone, and the judge's endpoint no key."""
    assert {len(swarm.calls(one.episode_id)) for one in swarm.episodes()} == {CALLS}
    assert judging.calls
    assert {call.key for call in judging.calls} == {""}


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_under_trainable(judging: PlainEndpoint, tmp_path: Path, is_async: bool) -> None:
    """In the program, whose own calls are rerouted at that time, and as its reward."""
    inside = [judge(judging.base_url) for judge in JUDGES]

    async def solve(task: Any) -> str:
        answer = await plain.play(task["question"])
        for judge in inside:
            await judge(task, answer)
        return answer

    def solve_sync(task: Any) -> str:
        answer = plain.play_sync(task["question"])
        for judge in inside:
            judge(task, answer)
        return answer

    tasks = [Task("a", payload={"question": "a"}), Task("b", payload={"question": "b"})]
    with swarm_in(tmp_path, 2) as swarm:
        client = (AsyncSwarmClient if is_async else SwarmClient)(swarm.url, swarm.token)
        program = trainable(solve if is_async else solve_sync, reward=scorer(judging.base_url))
        report = train(program, tasks, client=client, progress=False, retries=0)
        assert report.failures == []
        assert_apart(swarm, judging)


def solve_row(row: Any) -> str:
    return plain.play_sync(row["question"])


async def test_under_rollouts_of_a_source(judging: PlainEndpoint, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": str(n), "question": str(n)}) + "\n" for n in "ab"))
    settings = {
        "judge": "rubric",
        "judge_settings": {
            "base_url": judging.base_url,
            "model": "m",
            "api_key_env": "",
            "criteria": {"good": {"question": "Is it good?"}},
        },
        "program": f"{__name__}:solve_row",
    }
    with swarm_in(tmp_path / "swarm", 2) as swarm:
        source = load_source(str(rows), settings)
        await source.open()
        report = await train_all(source, swarm, steps=1)
        await source.close()
        assert (report.failures, len(report.outcomes)) == ([], 4)
        assert_apart(swarm, judging)


PROGRAM = """
import os, sys
sys.path[:0] = {path!r}
from openai import OpenAI
from tests.judges import test_own_endpoint as judges
for _ in range({calls}):
    OpenAI().chat.completions.create(
        model=os.environ["AJET_MODEL"], messages=[{{"role": "user", "content": "hello"}}]
    )
for judge in judges.JUDGES:
    judge({url!r}, {settings})({{"question": "hello"}}, "hello")
"""


def test_in_a_program_of_exec(
    judging: PlainEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the usual variables have the URL and the key of the episode."""
    said = exec_program(judging, tmp_path, monkeypatch)
    assert f'"calls": {CALLS}' in said
    assert '"exit_code": 0' in said
    assert len(judging.calls) == 4
    assert {call.key for call in judging.calls} == {""}


def test_the_key_of_an_episode_is_not_sent_to_a_judge(
    judging: PlainEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the variable that the judge reads by default."""
    said = exec_program(judging, tmp_path, monkeypatch, 'api_key_env="OPENAI_API_KEY"')
    assert "the judge has the URL or the key of an episode" in said
    assert judging.calls == []


def exec_program(
    judging: PlainEndpoint, directory: Path, monkeypatch: pytest.MonkeyPatch, settings: str = ""
) -> str:
    """Return what ``ajet exec --once`` shows of a program with the judges."""
    (directory / "tasks.jsonl").write_text('{"id": "a", "prompt": "hello"}\n')
    path = [str(Path(__file__).parents[2])]
    program = PROGRAM.format(path=path, calls=CALLS, url=judging.base_url, settings=settings)
    (directory / "program.py").write_text(program)
    (directory / "grade.py").write_text("print(1)\n")
    python = sys.executable
    with swarm_in(directory / "swarm", 1) as swarm:
        monkeypatch.setenv("AJET_CLIENT__URL", swarm.url)
        monkeypatch.setenv("AJET_CLIENT__TOKEN", swarm.token)
        done = CliRunner().invoke(
            ajet,
            [
                *("exec", "--once", "--box", "none", "--tasks", str(directory / "tasks.jsonl")),
                *("--reward", f"{python} {directory / 'grade.py'}"),
                *("--", python, str(directory / "program.py")),
            ],
        )
    return str(done.output)


@pytest.mark.parametrize("judge", JUDGES)
def test_the_url_of_an_episode_is_refused(judge: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="set base_url to the judge's endpoint"):
        judge("http://127.0.0.1:9/e/ajet-ep-1234/v1")({"question": "a"}, "a")
