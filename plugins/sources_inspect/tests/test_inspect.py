"""Evals of Inspect as task sources, with Inspect itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ajet_sources_inspect.source import InspectSource
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log

from agentjet.client import AsyncSwarmClient, Episode, RunnerReport
from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task, TaskSource
from ajet_sources import load_source
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.sources.interrupting import assert_evaluations_continue
from ajet_testing.suites.source_suite import SourceSuite

TASKS = Path(__file__).parent / "inspect_tasks.py"


class TestInspect(SourceSuite):
    # Enough for several calls at once on a busy machine.
    episodes = 40

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self.logs = tmp_path / "logs"

    def make_source(self) -> TaskSource:
        settings = {"log_dir": str(self.logs), "max_retries": 0}
        return load_source(f"inspect:{TASKS}@numbered", settings)


@contextlib.asynccontextmanager
async def opened(name: str, directory: Path, **settings: Any) -> AsyncIterator[Any]:
    given = {"log_dir": str(directory / "logs"), **settings}
    source = load_source(f"inspect:{TASKS}@{name}", given)
    assert isinstance(vars(source)["_source"], InspectSource)
    async with source:
        yield source


def endpoint(episode: Episode) -> ModelEndpoint:
    return ModelEndpoint(episode.base_url, episode.api_key, episode.model, episode.episode_id)


async def rolled(
    source: InspectSource, swarm: ScriptedSwarm, tasks: Sequence[Task], **options: Any
) -> RunnerReport:
    async def agent(task: Task, episode: Episode) -> EpisodeOutcome:
        return await source.roll_out(task, endpoint(episode))

    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        return await client.run_episodes_until_all_complete(
            tasks, agent, **{"episodes_per_task": 2, "retries": 0, **options}
        )


def logs(directory: Path) -> list[EvalLog]:
    return [read_eval_log(info) for info in list_eval_logs(str(directory / "logs"))]


async def test_an_unchanged_eval_makes_two_steps(swarm: ScriptedSwarm, tmp_path: Path) -> None:
    """Each episode has the calls of its own sample, and Inspect's log has all of them."""
    async with opened("words", tmp_path) as source:
        tasks = source.tasks("train")
        assert [task.id for task in tasks] == [f"word{number}" for number in range(8)]
        report = await rolled(source, swarm, tasks)
    assert report.failures == []
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        await client.wait_for_step(2)
    answers = {}
    for result in report.outcomes:
        (call,) = swarm.calls(result.episode.episode_id)
        said = swarm.text(call)
        assert f"Say {result.task.id}." in said
        assert result.outcome.reward == float(result.task.id in said.rpartition("assistant")[2])
        answers[result.episode.episode_id] = result.task.id
    (log,) = logs(tmp_path)
    assert log.status == "success"
    assert sorted((sample.id, sample.epoch) for sample in log.samples or []) == sorted(
        (task.id, epoch) for task in tasks for epoch in (1, 2)
    )
    # The log says which episode each sample was.
    in_log = {
        event.data["episode"]: sample.id
        for sample in log.samples or []
        for event in sample.events
        if event.event == "info" and event.source == "agentjet"
    }
    assert in_log == answers


async def test_failures_of_the_environment_abort_with_their_cause(
    swarm: ScriptedSwarm, tmp_path: Path
) -> None:
    async with opened("failing", tmp_path) as source:
        tasks = [task for task in source.tasks("train") if task.id != "hangs"]
        report = await rolled(source, swarm, tasks, episodes_per_task=1)
    assert [result.task.id for result in report.outcomes] == ["good"]
    causes = {failure.task.id: failure.error for failure in report.failures}
    assert all(isinstance(cause, EnvironmentFailedError) for cause in causes.values())
    for task, said in {
        "solver": "the solver has a bug",
        "scorer": "the scorer has a bug",
        "strange": "the score 'rather good' of fragile is not a finite number",
        "endless": "not a finite number",
        "judge": "model_roles",
    }.items():
        assert said in str(causes.pop(task))
    assert causes == {}


async def test_a_cancelled_episode_ends_its_sample(swarm: ScriptedSwarm, tmp_path: Path) -> None:
    async with opened("failing", tmp_path) as source:
        (hangs,) = (task for task in source.tasks("train") if task.id == "hangs")
        (good,) = (task for task in source.tasks("train") if task.id == "good")
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            episode = await client.begin_episode("hangs")
            rolling = asyncio.create_task(source.roll_out(hangs, endpoint(episode)))
            # The call of the sample that hangs is answered before others are.
            assert (await rolled(source, swarm, [good], episodes_per_task=1)).failures == []
            rolling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await rolling
            await client.abort_episode(episode, "cancelled")
    (log,) = logs(tmp_path)
    (sample,) = (one for one in log.samples or [] if one.id == "hangs")
    assert sample.error is not None


async def test_a_sandbox_that_cannot_start_is_no_reward(
    swarm: ScriptedSwarm, tmp_path: Path
) -> None:
    async with opened("no_sandbox", tmp_path) as source:
        report = await rolled(source, swarm, source.tasks("train"), episodes_per_task=1)
    assert report.outcomes == []
    assert [type(failure.error) for failure in report.failures] == [EnvironmentFailedError]


async def test_scores_in_parts_are_components(swarm: ScriptedSwarm, tmp_path: Path) -> None:
    async with opened("in_parts", tmp_path, reward="two_parts.found") as source:
        found = await source.score(source.tasks("train")[0], "It is word0.")
        other = await source.score(source.tasks("train")[0], "word1")
    assert found is not None
    assert other is not None
    assert found.reward == 1.0
    assert found.components == {"two_parts.found": 1.0, "two_parts.short": 0.25}
    assert other.reward == 0.0


async def test_which_part_is_the_reward_must_be_said(tmp_path: Path) -> None:
    async with opened("in_parts", tmp_path) as source:
        with pytest.raises(EnvironmentFailedError, match=r"two_parts\.found, two_parts\.short"):
            await source.score(source.tasks("train")[0], "word0")


JUDGED: list[str] = []


class JudgeModel(BaseHTTPRequestHandler):
    """A model that always gives half of the points."""

    def do_POST(self) -> None:
        JUDGED.append(self.headers["authorization"])
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "GRADE: P"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        body = json.dumps({**answer, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def judge() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), JudgeModel) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


async def test_judges_are_other_models(
    swarm: ScriptedSwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of the judge is none of the episode's."""
    with judge() as url:
        monkeypatch.setenv("JUDGE_BASE_URL", url)
        monkeypatch.setenv("JUDGE_API_KEY", "of the judge")
        roles = {"grader": "openai-api/judge/model"}
        async with opened("graded", tmp_path, model_roles=roles) as source:
            report = await rolled(source, swarm, source.tasks("train"), episodes_per_task=1)
    (result,) = report.outcomes
    assert result.outcome.reward == 0.5
    (call,) = swarm.calls(result.episode.episode_id)
    assert "Say word0." in swarm.text(call)
    assert JUDGED == ["Bearer of the judge"]


async def test_answers_are_probed_without_a_model(tmp_path: Path) -> None:
    """Also through the tool with which an agent submits."""
    for name in ("words", "agentic"):
        async with opened(name, tmp_path) as source:
            task = source.tasks("train")[0]
            rewards = [
                outcome and outcome.reward
                for outcome in [
                    await source.probe(task, "reference"),
                    await source.probe(task, "nop"),
                    await source.probe(task, "unknown"),
                ]
            ]
        assert rewards == [1.0, 0.0, 0.0]


async def test_a_log_ends_at_its_size(swarm: ScriptedSwarm, tmp_path: Path) -> None:
    async with opened("words", tmp_path, samples_per_log=2) as source:
        task = source.tasks("train")[0]
        for _ in range(3):
            await source.score(task, "word0")
            await source.score(task, "word0")
    assert [len(log.samples or []) for log in logs(tmp_path)] == [2, 2, 2]


async def test_splits_share_no_sample(tmp_path: Path) -> None:
    async with opened("words", tmp_path, eval_share=0.5, args={"count": 40}) as source:
        train, held_out = ({task.id for task in source.tasks(s)} for s in source.splits())
    assert len(train | held_out) == 40
    assert not train & held_out
    assert held_out


@pytest.mark.parametrize(
    ("name", "said"), [("", "several tasks"), ("@nope", "nope"), ("none.py", "none.py")]
)
async def test_what_cannot_be_loaded_is_named(name: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name if name.endswith(".py") else f"{TASKS}{name}"
    with pytest.raises(ConfigError, match=re.escape(said)):
        async with load_source(f"inspect:{path}"):
            pass


async def test_when_inspect_dies_its_episodes_fail_and_nothing_is_left(tmp_path: Path) -> None:
    async with opened("failing", tmp_path) as source:
        assert vars(source)["_source"]._process is not None
        (hangs,) = (task for task in source.tasks("train") if task.id == "hangs")
        rolling = asyncio.create_task(source.score(hangs, "hello"))
        # It is answered after the request of `rolling` was read.
        (good,) = (task for task in source.tasks("train") if task.id == "good")
        await source.score(good, "hello")
        vars(source)["_source"]._process.kill()
        with pytest.raises(EnvironmentFailedError, match="Inspect has ended"):
            await rolling
        with pytest.raises(EnvironmentFailedError, match="Inspect does not run"):
            await source.score(good, "hello")
        group = vars(source)["_source"]._process.pid
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


@pytest.mark.learns
@pytest.mark.timeout(1800)
def test_evaluations_continue_after_ctrl_c_and_kills(tmp_path: Path) -> None:
    """With the real commands: nothing is lost or done twice, and no process is left."""
    shutil.copy(Path(__file__).parent / "inspect_tasks.py", tmp_path)
    assert_evaluations_continue(
        "inspect:inspect_tasks.py@numbered",
        tmp_path,
        lambda call: f"word{call.text.rstrip('?').split()[-1]}",
    )
