"""A call of a trainable program is an episode."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from agentjet.agents import agent_name, trainable
from agentjet.agents.route import current_route
from agentjet.client import AsyncSwarm, AsyncSwarmClient, EpisodeOutcome, Swarm, SwarmClient, Task
from ajet_core.errors import ConfigError, RequestError, RoutingError
from ajet_core.interfaces import EpisodeRecord
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import REPLIES
from tests.agents import plain
from tests.agents.plain import NOWHERE


async def ask(model: str = "any") -> str:
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "Which door?"}]}
    async with AsyncOpenAI(base_url=NOWHERE, api_key="sk-real", max_retries=0) as client:
        return (await client.chat.completions.create(**asked)).choices[0].message.content or ""


@pytest.fixture
async def client(swarm: ScriptedSwarm):
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        yield client


def last(swarm: ScriptedSwarm) -> EpisodeRecord:
    return swarm.episodes()[-1]


async def test_a_call_ends_with_the_reward_and_returns_what_the_program_returns(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    async def score(task: dict[str, str], answer: str) -> EpisodeOutcome:
        assert task == {"id": "t1", "question": "Which?"}
        return EpisodeOutcome(reward=0.25, components={"length": float(len(answer))})

    @trainable(client, reward=score)
    async def solve(task: dict[str, str], *, polite: bool) -> str:
        """Solves."""
        assert polite
        return await ask()

    answer = await solve({"id": "t1", "question": "Which?"}, polite=True)
    assert answer.startswith("Take the")
    record = last(swarm)
    assert (record.task_id, record.state, record.reward) == ("t1", "ended", 0.25)
    assert record.components == {"length": float(len(answer))}
    assert (solve.__name__, solve.__doc__) == ("solve", "Solves.")


async def test_a_program_may_say_its_reward_itself(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    @trainable(client)
    async def solve(task: str) -> float:
        await ask()
        return 0.5

    assert await solve("itself") == 0.5
    assert last(swarm).reward == 0.5


async def test_an_exception_aborts_the_episode_and_is_raised(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    @trainable(client, reward=lambda task, result: 1.0)
    async def solve(task: str) -> None:
        await ask()
        raise LookupError("the map is gone")

    with pytest.raises(LookupError):
        await solve("raises")
    record = last(swarm)
    assert record.state == "aborted"
    assert "LookupError: the map is gone" in (record.reason or "")


@pytest.mark.parametrize("result", ["a text", None])
async def test_what_is_no_reward_is_refused(
    swarm: ScriptedSwarm, client: AsyncSwarmClient, result: Any
) -> None:
    @trainable(client)
    async def solve(task: str) -> Any:
        await ask()
        return result

    with pytest.raises(TypeError, match="return the reward as a number"):
        await solve("no reward")
    assert last(swarm).state == "aborted"


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
async def test_a_reward_that_is_not_finite_aborts_the_episode(
    swarm: ScriptedSwarm, client: AsyncSwarmClient, reward: float
) -> None:
    @trainable(client, reward=lambda task, result: reward)
    async def solve(task: str) -> str:
        return await ask()

    with pytest.raises(RequestError, match="reward: Input should be a finite number"):
        await solve("not finite")
    assert last(swarm).state == "aborted"
    assert "reward: Input should be a finite number" in (last(swarm).reason or "")


async def test_an_episode_without_a_model_call_is_refused(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    @trainable(client)
    async def idle(task: str) -> float:
        return 1.0

    with pytest.raises(RoutingError, match="idle made no model call that could be trained"):
        await idle("idle")
    assert last(swarm).state == "aborted"


def test_calls_of_another_http_client_are_known_to_the_server(swarm: ScriptedSwarm) -> None:
    def post(url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        body = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200

    with SwarmClient(swarm.url, swarm.token) as client:

        @trainable(client, sampling={"temperature": 0.5}, max_calls=1)
        def solve(task: str) -> float:
            route = current_route()
            assert route is not None
            (endpoint,) = route.endpoints.values()
            url = f"{endpoint.base_url}/chat/completions"
            post(url, endpoint.api_key)
            with pytest.raises(urllib.error.HTTPError, match="403"):
                post(url, endpoint.api_key)
            return 1.0

        assert solve("other client") == 1.0
    episode = last(swarm)
    (call,) = swarm.calls(episode.episode_id)
    assert (episode.state, call.temperature) == ("ended", 0.5)


async def test_the_judge_of_a_reward_is_asked_where_it_is(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    async def judge(task: str, answer: str) -> float:
        with pytest.raises(openai.APIConnectionError):
            await ask()
        return 1.0

    async def solve(task: str) -> str:
        return await ask()

    await trainable(solve, client, reward=judge)("judged")
    assert len(swarm.calls(last(swarm).episode_id)) == 1


def test_a_function_that_is_not_async_has_a_client_that_is_not(swarm: ScriptedSwarm) -> None:
    with SwarmClient(swarm.url, swarm.token) as client:

        @trainable(client, reward=lambda task, result: 1.0)
        def solve(task: str) -> str:
            return plain.play_sync(task)

        assert solve("sync").startswith("I have looked")
        agent = trainable(plain.worker, client, reward=lambda task, result: 1.0)
        assert agent("sync agent").startswith("I have looked")
    assert [call.agent for call in swarm.calls(last(swarm).episode_id)] == ["worker", "worker"]


async def test_methods_and_callable_objects_are_programs_too(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    class Solver:
        reward = 0.75

        @trainable(client)
        async def solve(self, task: str) -> float:
            await ask()
            return self.reward

        async def __call__(self, task: str, factor: float = 1.0) -> float:
            await ask()
            return self.reward * factor

    assert await Solver().solve("method") == 0.75
    assert await trainable(Solver(), client)("object") == 0.75
    assert await trainable(functools.partial(Solver(), factor=2.0), client)("partial") == 1.5
    assert last(swarm).reward == 1.5


async def test_without_a_client_a_program_is_what_it_was(swarm: ScriptedSwarm) -> None:
    episodes = len(swarm.episodes())

    @trainable(reward=lambda task, result: 1.0)
    async def solve(task: str) -> str:
        return task.upper()

    assert await solve("x") == "X"
    assert await solve.plain("x") == "X"
    assert len(swarm.episodes()) == episodes


async def test_its_arguments_are_what_they_were() -> None:
    """Whatever they are called, and however many there are."""

    @trainable(reward=lambda task, result: 1.0)
    async def solve(question: str, *, task: str = "", self: str = "") -> tuple[str, str, str]:
        return question, task, self

    @trainable(reward=lambda task, result: 1.0)
    def nothing() -> str:
        return "nothing"

    assert await solve(question="?") == ("?", "", "")
    assert await solve("?", task="t", self="s") == ("?", "t", "s")
    assert nothing() == "nothing"


async def test_a_task_may_be_named_as_the_program_names_it(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    class Solver:
        @trainable(client)
        async def solve(self, question: str, *, task: str = "") -> float:
            await ask()
            return 0.25 if task else 0.5

    assert await Solver().solve(question="by name") == 0.5
    assert last(swarm).task_id == "by name"
    assert await Solver().solve("by place", task="another") == 0.25
    assert last(swarm).task_id == "by place"
    with pytest.raises(TypeError, match="solve\\(\\) was called without a task"):
        await Solver().solve(task="another")

    def solve(question: str) -> float:
        plain.play_sync(question)
        return 0.75

    with SwarmClient(swarm.url, swarm.token) as threads:
        its = trainable(solve, threads)
        assert await asyncio.to_thread(its, question="in a thread") == 0.75
    assert last(swarm).task_id == "in a thread"


async def test_what_does_not_fit_is_refused(swarm: ScriptedSwarm) -> None:
    async def solve(task: str) -> float:
        return 1.0

    def generates(task: str):
        yield 1.0

    with SwarmClient(swarm.url) as sync:
        with pytest.raises(TypeError, match="an async function requires AsyncSwarmClient"):
            trainable(solve, sync)
        with pytest.raises(TypeError, match="generator"):
            trainable(generates, sync)
        with pytest.raises(TypeError, match="two clients"):
            trainable(sync, sync)
        with pytest.raises(TypeError, match="do not pass a client"):
            trainable(lambda task: 1.0, sync, models={"a": swarm.url})
    with pytest.raises(TypeError, match="requires SwarmClient or Swarm, not AsyncSwarmClient"):
        trainable(lambda task: 1.0, AsyncSwarmClient(swarm.url))
    with pytest.raises(ConfigError, match=r"builtins.object \(installed adapters: .*plain"):
        trainable(object())
    with pytest.raises(TypeError, match="has no id"):
        await trainable(solve, AsyncSwarmClient(swarm.url))(object())


async def test_rewards_of_agents(swarm: ScriptedSwarm, client: AsyncSwarmClient) -> None:
    @trainable(client)
    async def solve(task: str) -> EpisodeOutcome:
        await plain.play(task)
        return EpisodeOutcome(reward=0.0, agent_rewards={"planner": 1.0})

    await solve(Task("by agent", payload="a door"))
    assert last(swarm).agent_rewards == {"planner": 1.0}


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory):
    """Another server, for another model."""
    batch = {"tasks": 64, "episodes_per_task": 4}
    with ScriptedSwarm(tmp_path_factory.mktemp("executors"), REPLIES, batch=batch) as executors:
        yield executors


async def test_models_by_the_names_of_agents(
    swarm: ScriptedSwarm, executors: ScriptedSwarm
) -> None:
    models: dict[str, SwarmClient | AsyncSwarmClient] = {
        "planner": AsyncSwarmClient(swarm.url, swarm.token),
        "executor": SwarmClient(executors.url, executors.token),
    }
    program = trainable(
        plain.play,
        models=models,
        roles={"worker": "executor"},
        reward=lambda task, result: {"planner": 1.0, "executor": 0.5},
    )
    played = await program.episode("joint")
    parts = played.episode.parts
    assert [c.agent for c in swarm.calls(parts["planner"].episode_id)] == ["planner"]
    assert [c.agent for c in executors.calls(parts["executor"].episode_id)] == ["worker", "worker"]
    assert (last(swarm).reward, last(executors).reward) == (1.0, 0.5)


async def test_models_by_the_names_that_are_asked_for(
    swarm: ScriptedSwarm, executors: ScriptedSwarm
) -> None:
    servers = {"planner": swarm.url, "executor": executors.url}
    tokens = dict.fromkeys(servers, swarm.token)

    async def program(task: str) -> float:
        await ask("planner")
        await ask("gpt-5-mini")
        with agent_name("executor"):
            await ask("planner")
        with pytest.raises(openai.BadRequestError, match="matches none of the roles"):
            await ask("gpt-5")
        return 1.0

    async with AsyncSwarm(servers, tokens) as joint:
        played = await trainable(program, joint, roles={"gpt-5-mini": "executor"}).episode("named")
    parts = played.episode.parts
    assert len(swarm.calls(parts["planner"].episode_id)) == 1
    assert len(executors.calls(parts["executor"].episode_id)) == 2


def test_several_models_of_a_function_that_is_not_async(
    swarm: ScriptedSwarm, executors: ScriptedSwarm
) -> None:
    servers = {"planner": swarm.url, "worker": executors.url}
    with Swarm(servers, dict.fromkeys(servers, swarm.token)) as joint:
        program = trainable(plain.play_sync, joint, reward=lambda task, result: 1.0)
        parts = program.episode("sync joint").episode.parts
    assert len(executors.calls(parts["worker"].episode_id)) == 2


async def test_agents_may_be_told_by_their_system_prompts(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    @trainable(client, agents={"planner": "You plan", "critic": "You judge"})
    async def solve(task: str) -> float:
        for prompt in ("You plan ahead.", "You judge plans.", "You are somebody."):
            async with AsyncOpenAI(base_url=NOWHERE, api_key="sk-real") as llm:
                system: Any = {"role": "system", "content": prompt}
                user: Any = {"role": "user", "content": "Which door?"}
                await llm.chat.completions.create(model="any", messages=[system, user])
        return 1.0

    await solve("prompts")
    calls = swarm.calls(last(swarm).episode_id)
    assert [call.agent for call in calls] == ["planner", "critic", ""]


async def test_calls_that_all_failed_are_no_episode(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    @trainable(client)
    async def swallows(task: str) -> float:
        async with AsyncOpenAI(base_url=NOWHERE, api_key="sk-real") as llm:
            with pytest.raises(openai.BadRequestError):
                await llm.chat.completions.create(model="any", messages=[])
        return 1.0

    with pytest.raises(RoutingError, match="none of its 1 model calls succeeded"):
        await swallows("swallowed")
    assert last(swarm).state == "aborted"


async def test_a_worker_that_outlives_its_episode_is_told_so(
    swarm: ScriptedSwarm, client: AsyncSwarmClient
) -> None:
    jobs: asyncio.Queue[asyncio.Future[str]] = asyncio.Queue()

    async def serve() -> None:
        while True:
            job = await jobs.get()
            try:
                job.set_result(await ask())
            except openai.BadRequestError as error:
                job.set_exception(error)

    workers: list[asyncio.Task[None]] = []

    @trainable(client)
    async def solve(task: str) -> float:
        if not workers:
            workers.append(asyncio.create_task(serve()))
        job: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await jobs.put(job)
        await job
        return 1.0

    await solve("first of a worker")
    with pytest.raises(openai.BadRequestError, match="started in an episode that is over"):
        await solve("second of a worker")
    workers[0].cancel()


async def test_attributes_of_an_object_are_its_own(client: AsyncSwarmClient) -> None:
    class Solver:
        def __init__(self) -> None:
            self.agent = self.options = self.plain = "mine"

        async def __call__(self, task: str) -> float:
            return 1.0

    solver = Solver()
    program = trainable(solver, client, tag="math")
    assert program.plain is solver
    assert program.options.tag == "math"
    assert callable(program.agent)
    with pytest.raises(TypeError, match="already trainable"):
        trainable(program, reward=lambda task, result: 1.0)


def test_what_has_to_be_awaited_is_said_so(swarm: ScriptedSwarm) -> None:
    async def judge(task: str, result: object) -> float:
        return 1.0

    with SwarmClient(swarm.url, swarm.token) as client:
        with pytest.raises(TypeError, match="declare it with `async def`"):
            trainable(lambda task: plain.play(f"{task}!"), client)("a lambda")
        with pytest.raises(TypeError, match="the reward function is async"):
            trainable(plain.play_sync, client, reward=judge)


async def test_the_clients_timeout_counts(swarm: ScriptedSwarm, client: AsyncSwarmClient) -> None:
    @trainable(client)
    async def solve(task: str) -> float:
        asked = {"model": "any", "messages": [{"role": "user", "content": "Which door?"}]}
        async with httpx.AsyncClient(timeout=33.0) as own:
            request = httpx.Request("POST", f"{NOWHERE}/chat/completions", json=asked)
            answer = await own.send(request)
        assert answer.request.extensions["timeout"]["read"] == 33.0
        return 1.0

    assert await solve("timeout") == 1.0


async def test_proxies_of_the_environment_are_not_for_this_machine(
    swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:

        @trainable(client)
        async def solve(task: str) -> float:
            monkeypatch.setenv("NO_PROXY", "")
            monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
            await ask()
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            return 1.0

        assert await solve("proxies") == 1.0


async def test_a_call_in_a_dialect_that_is_not_spoken_is_left_alone_and_said_so_once(
    client: AsyncSwarmClient, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def ollama(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["x-api-key"])
        return httpx.Response(200, json={})

    @trainable(client)
    async def solve(task: str) -> float:
        async with httpx.AsyncClient(transport=httpx.MockTransport(ollama)) as http:
            for _ in range(2):
                url = "https://ollama.example/api/chat"
                await http.post(url, json={}, headers={"x-api-key": "real"})
        return 1.0

    with pytest.raises(RoutingError, match=r"ollama\.example/api/chat: "):
        await solve("strange")
    assert asked == ["real", "real"]
    assert sum("does not support its dialect" in line for line in caplog.messages) == 1


def test_event_loops_leave_nothing_open(swarm: ScriptedSwarm) -> None:
    def solve(task: str) -> float:
        asyncio.run(plain.play(task))
        return 1.0

    def open_files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    with SwarmClient(swarm.url, swarm.token) as client:
        program = trainable(solve, client)
        program("loop 0")
        before = open_files()
        for i in range(1, 9):
            program(f"loop {i}")
        # The server, which is in this process too, notices a little later that a connection has
        # ended.
        while open_files() >= before + 4:
            time.sleep(0.02)


@pytest.mark.parametrize("name", ["reward", "group_reward"])
def test_a_reward_that_is_not_a_function_is_refused(name: str) -> None:
    decorator: Any = trainable
    with pytest.raises(TypeError, match=rf"^{name}= must be a function, or None: got 3$"):
        decorator(**{name: 3})(lambda task: task)
