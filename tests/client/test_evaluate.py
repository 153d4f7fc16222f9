"""`evaluate` of both clients."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from agentjet.client import Task, TaskEvaluation
from tests.support.clients import (
    GRANT,
    RUN_CONFIG,
    MakeFace,
    Script,
    episode_status,
    error,
    run_status,
)

REWARDS = {"a": [1.0, 0.5], "b": [0.25, 0.0], "c": []}


def script(evaluation: dict[str, Any]) -> Script:
    def claim(request: httpx2.Request) -> httpx2.Response:
        version = 4 if b'"b"' in request.content else 3
        return httpx2.Response(200, json=GRANT | {"kind": "eval", "policy_version": version})

    config = RUN_CONFIG | {"evaluation": evaluation}
    made = Script().on("GET /v1/run", (200, run_status(config=config)))
    made.on("POST /v1/episodes", claim)
    made.on("POST /v1/episodes/ep-1/end", (200, episode_status(state="ended")))
    return made.on("POST /v1/episodes/ep-1/abort", (200, episode_status(state="aborted")))


def agent(face: Any) -> Any:
    """Gives each task its rewards in turn; raises when there are none left."""
    left = {task: list(rewards) for task, rewards in REWARDS.items()}

    def plain(task: Task, _: Any) -> float:
        return left[task.id].pop(0)

    async def as_async(task: Task, episode: Any) -> float:
        return plain(task, episode)

    return as_async if "Async" in type(face.client).__name__ else plain


async def test_episodes_are_scored_as_the_run_says(make: MakeFace) -> None:
    face = make(script({"pass_reward": 0.5, "pass_at": [1, 2, 3]}))
    report = await face.call(
        "evaluate", ["a", "b", "c"], agent(face), episodes_per_task=2, retries=0, concurrency=1
    )
    assert report.pass_at == {1: 0.5, 2: 0.5}
    assert report.pass_reward == 0.5
    assert report.reward_mean == 0.4375
    assert report.steps == [3, 4]
    assert report.tasks == [
        TaskEvaluation(task_id="a", episodes=2, passed=2, reward_mean=0.75),
        TaskEvaluation(task_id="b", episodes=2, passed=0, reward_mean=0.125),
    ]
    assert [failure.task.id for failure in report.failures] == ["c", "c"]


@pytest.mark.parametrize(("tag", "tags"), [("set", ["set", "set"]), ("", ["own", ""])])
async def test_episodes_are_evaluation_episodes_of_their_task_set(
    make: MakeFace, tag: str, tags: list[str]
) -> None:
    served = script({})
    face = make(served)
    tasks = [Task("a", tag="own"), "b"]
    await face.call("evaluate", tasks, agent(face), tag=tag, concurrency=1)
    claims = [b for b in served.bodies() if b and "task_id" in b]
    assert [(c["kind"], c["tag"]) for c in claims] == [("eval", t) for t in tags]


async def test_without_a_run_nothing_is_rolled_out(make: MakeFace) -> None:
    served = Script().on("GET /v1/run", (409, error("wrong_state", "no run is configured")))
    face = make(served)
    with pytest.raises(Exception, match="no run is configured"):
        await face.call("evaluate", ["a"], agent(face))
    assert served.routes() == ["GET /v1/run"]


async def test_evaluations_are_those_of_the_server(make: MakeFace) -> None:
    found = {
        "client_id": "c",
        "tag": "t",
        "step": 2,
        "tasks": 1,
        "episodes": 4,
        "open": 0,
        "aborted": 0,
        "mixed": 0,
        "reward_mean": 0.5,
        "pass_at": {"1": 0.5, "4": 1.0},
    }
    served = Script().on("GET /v1/evaluations", (200, {"evaluations": [found]}))
    (evaluation,) = await make(served).call("evaluations")
    assert (evaluation.step, evaluation.pass_at) == (2, {1: 0.5, 4: 1.0})
