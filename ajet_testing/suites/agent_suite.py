"""Conformance tests for agent adapters. Subclass `AgentSuite` in a test module."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, ClassVar, Literal

import pytest

from agentjet.agents import Route, installed_adapters, train, train_async, trainable
from agentjet.client import AsyncSwarmClient, SwarmClient, Task
from ajet_core.interfaces import AgentAdapter
from ajet_core.protocol import ServerStatus
from ajet_core.timeline import Call
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

PLANNER, WORKER = "planner", "worker"
DOORS = ("left", "middle", "right")
TRAPDOOR = "trapdoor"
MANY = 200
_TOGETHER = 120.0
"""Seconds in which all of many episodes must have begun."""
_numbers = count(500)
_NAME = re.compile(r"t\d{3}x")
_END = "<|im_end|>"
LAST_IS_TOOL = r"</tool_response><\|im_end\|>\s*<\|im_start\|>assistant\s*(<think>\s*</think>\s*)?$"


def tool_call(name: str, arguments: str) -> str:
    """Return a tool call in the form of the scripted model.

    :param arguments: JSON text.
    """
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>{_END}'


HIDDEN = "the answer is forty-two"


@dataclass(frozen=True)
class Secret:
    """A task with its answer."""

    id: str
    answer: str = HIDDEN


def _one(_task: object, _result: object) -> float:
    """Reward all equally: the tests are about attribution of calls."""
    return 1.0


def _name_of(task: object) -> str:
    """Find the name of a task in its text."""
    match = _NAME.search(str(task))
    return match.group() if match else str(task)


REPLIES = (
    ScriptedReply(prompt=LAST_IS_TOOL, says=(f"I have looked behind it.{_END}",)),
    ScriptedReply(
        prompt=r'"name": "open_door".*t9\d\dx',
        says=(tool_call("open_door", f'{{"door": "{TRAPDOOR}"}}'),),
    ),
    ScriptedReply(
        prompt='"name": "open_door"',
        says=tuple(tool_call("open_door", f'{{"door": "{door}"}}') for door in DOORS),
    ),
    ScriptedReply(prompt="", says=tuple(f"Take the {door} door.{_END}" for door in DOORS)),
)
"""The planner, who has no tools, names a door; the worker opens one, and ends after its result."""


@contextmanager
def open_telemetry_spans() -> Iterator[list[str]]:
    """Record the spans of OpenTelemetry's global provider, as JSON.

    The test is skipped if OpenTelemetry's SDK is not installed.
    """
    trace = pytest.importorskip("opentelemetry.trace", reason=_NO_TRACING)
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=_NO_TRACING)
    provider = trace.get_tracer_provider()
    if not isinstance(provider, sdk.TracerProvider):
        provider = sdk.TracerProvider()
        trace.set_tracer_provider(provider)
    spans: list[str] = []
    is_open = True

    class Recorder(sdk.SpanProcessor):  # type: ignore[misc, name-defined]
        def on_end(self, span: Any) -> None:
            # A provider keeps its processors.
            if is_open:
                spans.append(span.to_json())

    provider.add_span_processor(Recorder())
    try:
        yield spans
    finally:
        is_open = False


_NO_TRACING = "OpenTelemetry is not installed, and `spans` records no other tracing"


# Agents have connections, which belong to the event loop in which they were created.
@pytest.mark.asyncio(loop_scope="class")
class AgentSuite(ConformanceSuite):
    """Conformance tests of an `AgentAdapter`, with an ordinary program of its framework.

    The program has two agents, `PLANNER` and `WORKER`. The planner has no tools and names the door
    to take; the worker gets the task and the planner's answer, and has the tool ``open_door(door:
    str) -> str``, which raises ``ValueError`` for `TRAPDOOR`. Every prompt contains the task's
    text.

    .. code-block:: python

        class TestMyAdapter(AgentSuite):
            adapter = "my-framework"

            async def play(self, task: str) -> object:
                return await program.play(task)

            def worker(self) -> object:
                return program.worker

    Tests of a subclass that use its server must name their tasks ``t500x`` to ``t699x``: a group
    takes four episodes, and a fifth would wait forever.

    :cvar adapter: the registered name of the adapter.
    :cvar replies: the model's answers; the first one that matches the text of a prompt is used.
    :cvar extends: whether the next call of an agent extends the tokens of its previous one.
    :cvar tool_errors: whether an exception in a tool is ``raised`` from the program, or ``told`` to
        the model, which continues.
    :cvar dead_requests: maximum number of requests that the whole program makes in an episode that
        is over, in which each is refused with an error that is not retryable. `play` must raise: if
        the framework returns a failure instead, `play` raises an exception for it.
    :cvar many: the number of episodes that run at once in the largest tests; less (such as 24) on a
        busy machine, or if each agent is a process.
    :cvar traces: whether the framework exports spans of runs outside of episodes, which `spans`
        records.
    """

    adapter: ClassVar[str]
    replies: ClassVar[tuple[ScriptedReply, ...]] = REPLIES
    extends: ClassVar[bool] = True
    tool_errors: ClassVar[Literal["raised", "told"]] = "raised"
    dead_requests: ClassVar[int] = 1
    traces: ClassVar[bool] = False
    many: ClassVar[int] = MANY

    async def play(self, task: str) -> object:
        """Run both agents on a task."""
        raise NotImplementedError

    def play_sync(self, task: str) -> object:
        """Run both agents as `play` does, for frameworks without an event loop."""
        raise NotImplementedError

    def worker(self) -> object:
        """Return the worker, an agent that existed before the episode."""
        raise NotImplementedError

    @contextmanager
    def spans(self) -> Iterator[list[str]]:
        """Record, as texts, what the framework's tracing exports in the block.

        This records spans of OpenTelemetry; override it if the framework has tracing of its own.
        """
        with open_telemetry_spans() as spans:
            yield spans

    # --- Fixtures ---------------------------------------------------------------------------------

    @pytest.fixture(scope="class")
    @classmethod
    def swarm(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSwarm]:
        """Run a server with a slot for every episode."""
        directory = tmp_path_factory.mktemp("swarm")
        batch = {"tasks": MANY // 4, "episodes_per_task": 4}
        with ScriptedSwarm(directory, cls.replies, batch=batch) as swarm:
            yield swarm

    @pytest.fixture(autouse=True)
    def no_pause(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fail the test at once, with the reason, if a client would wait for a paused run.

        Tests have no operator who could resume it.
        """
        if "swarm" not in request.fixturenames:
            return
        swarm: ScriptedSwarm = request.getfixturevalue("swarm")
        ask, ask_async = SwarmClient.status, AsyncSwarmClient.status

        def check() -> None:
            if swarm.paused:
                pytest.fail(f"the server's run is paused: {swarm.paused}", pytrace=False)

        # A client that waits for a paused run asks for the status.
        def status(client: SwarmClient) -> ServerStatus:
            check()
            return ask(client)

        async def status_async(client: AsyncSwarmClient) -> ServerStatus:
            check()
            return await ask_async(client)

        monkeypatch.setattr(SwarmClient, "status", status)
        monkeypatch.setattr(AsyncSwarmClient, "status", status_async)

    @pytest.fixture(autouse=True)
    def own_adapter(self) -> AgentAdapter:
        """Return the adapter that an episode would use; without one, each test fails.

        :raises AjetError: the adapter cannot be used.
        """
        adapter = installed_adapters().of(self.worker())
        installed_adapters().prepare()
        return adapter

    @pytest.fixture(autouse=True)
    def no_strangers(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Fail the test if it connects to another machine."""
        strangers: set[str] = set()
        connect, resolve = socket.socket.connect, socket.getaddrinfo

        def connects(self: socket.socket, address: Any) -> Any:
            if isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1")):
                strangers.add(str(address[0]))
            return connect(self, address)

        def resolves(host: Any, *args: Any, **kwargs: Any) -> Any:
            if str(host) not in {"127.0.0.1", "localhost", "::1", "None"}:
                strangers.add(str(host))
            return resolve(host, *args, **kwargs)

        monkeypatch.setattr(socket.socket, "connect", connects)
        monkeypatch.setattr(socket, "getaddrinfo", resolves)
        yield
        assert not strangers

    # --- For tests of subclasses ------------------------------------------------------------------

    async def calls(self, swarm: ScriptedSwarm, play: Any, *tasks: Any) -> list[list[Call]]:
        """Return the calls recorded by each episode, after checking that they are its own.

        :param play: a program, or an agent.
        :param tasks: by default two with unique names, so that their episodes are not compared with
            those of other tests.
        """
        wanted = tasks or [f"t{next(_numbers)}x" for _ in range(2)]
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            report = await train_async(
                trainable(play, reward=_one, task_id=_name_of),
                wanted,
                client=client,
                episodes_per_task=4,
                retries=0,
                progress=False,
            )
        assert [str(failure.error) for failure in report.failures] == []
        by_episode = [swarm.calls(result.episode.episode_id) for result in report.outcomes]
        for result, calls in zip(report.outcomes, by_episode, strict=True):
            named = {name for call in calls for name in _NAME.findall(swarm.text(call))}
            assert named <= {result.task.id}
        return by_episode

    async def speakers(self, swarm: ScriptedSwarm, play: Any, *tasks: Any) -> list[str]:
        """Return the agents of an episode's calls, in order; check that all episodes agree."""
        agents = [[call.agent for call in calls] for calls in await self.calls(swarm, play, *tasks)]
        assert agents == [agents[0]] * len(agents)
        return agents[0]

    async def calls_of(
        self, swarm: ScriptedSwarm, play: Callable[[str], Awaitable[object]], task: str
    ) -> list[Call]:
        """Return the calls recorded by one episode of a program."""

        async def plays(task: str) -> object:
            return await play(task)

        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            played = await trainable(plays, client, reward=_one).episode(task)
        return swarm.calls(played.episode.episode_id)

    # --- Attribution ------------------------------------------------------------------------------

    # Some frameworks need seconds of CPU time for each of them.
    @pytest.mark.timeout(300)
    async def test_many_episodes_at_once_do_not_meet(self, swarm: ScriptedSwarm) -> None:
        """`many` at once: each call is recorded in its episode, with its agent's name."""
        everybody = asyncio.Barrier(self.many)

        async def together(task: str) -> object:
            # An episode that could not begin must not stop the others for ever.
            async with asyncio.timeout(_TOGETHER):
                await everybody.wait()
            return await self.play(task)

        # Each has a unique name, although four of them are compared with each other.
        tasks = [
            Task(f"many {i}", group=f"many {i // 4}", payload=f"t{i:03}x") for i in range(self.many)
        ]
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            report = await client.run_episodes_until_all_complete(
                tasks,
                trainable(together, reward=_one).agent,
                episodes_per_task=1,
                concurrency=self.many,
                retries=0,
                # So many programs keep the event loop from sending heartbeats.
                lease_seconds=600.0,
            )
        assert [str(failure.error) for failure in report.failures] == []
        assert len(report.outcomes) == self.many
        for result in report.outcomes:
            self._assert_attributed(swarm, result.episode.episode_id, str(result.task.payload))

    async def test_threads_do_not_meet(self, swarm: ScriptedSwarm) -> None:
        """The same for synchronous programs in threads."""
        if type(self).play_sync is AgentSuite.play_sync:
            pytest.skip("this framework is asynchronous")
        names = [f"t{i:03}x" for i in range(100, 110)]
        with SwarmClient(swarm.url, swarm.token) as client:
            report = await asyncio.to_thread(
                train,
                trainable(self.play_sync, reward=_one),
                names,
                client=client,
                episodes_per_task=2,
                concurrency=20,
                retries=0,
                progress=False,
            )
        assert [str(failure.error) for failure in report.failures] == []
        for result in report.outcomes:
            self._assert_attributed(swarm, result.episode.episode_id, result.task.id)

    def _assert_attributed(self, swarm: ScriptedSwarm, episode_id: str, name: str) -> None:
        calls = swarm.calls(episode_id)
        assert {call.agent for call in calls} == {PLANNER, WORKER}
        assert [set(_NAME.findall(swarm.text(call))) for call in calls] == [{name}] * len(calls)
        assert all(call.agent == WORKER for call in calls if "open_door" in swarm.text(call))
        self.assert_extended([call for call in calls if call.agent == WORKER])

    def assert_extended(self, calls: list[Call]) -> None:
        """Check that each call of one agent begins with all tokens of the previous one."""
        assert len(calls) > 1
        for one, two in pairwise(calls):
            assert (two.prompt_ids[: one.length] == one.token_ids) is self.extends

    @pytest.mark.parametrize("name", ["t310x", "t910x"], ids=["returned", "raised"])
    async def test_an_agent_that_has_ended_makes_no_further_calls(
        self, swarm: ScriptedSwarm, own_adapter: AgentAdapter, name: str
    ) -> None:
        """What the program does next is not done by its last agent, also after an exception."""
        current: list[str | None] = []

        async def plays(task: str) -> object:
            current.append(own_adapter.current_agent())
            # The reward is not at stake here.
            with contextlib.suppress(Exception):
                await self.play(task)
            current.append(own_adapter.current_agent())
            return task

        await self.calls_of(swarm, plays, name)
        assert current == [None, None]

    async def test_an_agent_that_has_ended_makes_no_further_calls_in_its_thread(
        self, swarm: ScriptedSwarm, own_adapter: AgentAdapter
    ) -> None:
        if type(self).play_sync is AgentSuite.play_sync:
            pytest.skip("this framework is asynchronous")

        def plays(task: str) -> str | None:
            self.play_sync(task)
            return own_adapter.current_agent()

        with SwarmClient(swarm.url, swarm.token) as client:
            program = trainable(plays, client, reward=_one)
            assert await asyncio.to_thread(program, "t311x") is None

    # --- Agents as objects ------------------------------------------------------------------------

    async def test_it_knows_its_own_agents(self, own_adapter: AgentAdapter) -> None:
        """It accepts its own agents only."""
        assert own_adapter in installed_adapters().in_use()
        assert own_adapter.accepts(self.worker())
        # What is asked about objects of other frameworks must cost their programs nothing.
        imported = set(sys.modules)
        assert not own_adapter.accepts(object())
        assert not own_adapter.accepts(self.play)
        assert sorted(set(sys.modules) - imported) == []

    async def test_an_agent_is_trained_as_it_is(self, swarm: ScriptedSwarm) -> None:
        """One agent in many concurrent episodes sees only their own tasks."""
        names = [f"t{i:03}x" for i in range(200, 200 + min(10, self.many // 2))]
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            agent = trainable(self.worker(), reward=_one)
            report = await train_async(
                agent,
                names,
                client=client,
                episodes_per_task=2,
                concurrency=min(20, self.many),
                retries=0,
                progress=False,
            )
        assert [str(failure.error) for failure in report.failures] == []
        for result in report.outcomes:
            calls = swarm.calls(result.episode.episode_id)
            assert {call.agent for call in calls} == {WORKER}
            assert all(set(_NAME.findall(swarm.text(call))) == {result.task.id} for call in calls)
            self.assert_extended(calls)

    async def test_an_agent_is_not_told_what_only_the_reward_is_to_know(
        self, swarm: ScriptedSwarm
    ) -> None:
        """A task that is not a text is refused or converted explicitly, never written out."""
        tasks = [Secret("t700x"), {"id": "t701x", "question": "t701x", "answer": HIDDEN}]
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            report = await train_async(
                trainable(self.worker(), reward=_one),
                tasks,
                client=client,
                episodes_per_task=1,
                retries=0,
                progress=False,
            )
        refused = {failure.task.id: failure.error for failure in report.failures}
        for name in ("t700x", "t701x"):
            # Calls made before a failure are recorded, so there must be none if the task was
            # refused.
            (episode,) = (record for record in swarm.episodes() if record.task_id == name)
            calls = swarm.calls(episode.episode_id)
            if name in refused:
                assert (type(refused[name]), calls) == (TypeError, [])
            else:
                assert calls
                assert all(HIDDEN not in swarm.text(call) for call in calls)

    async def test_agents_of_episodes_that_are_over_are_not_kept(
        self, swarm: ScriptedSwarm, own_adapter: AgentAdapter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of the copies for `many` episodes, almost all are gone."""
        fresh = own_adapter.fresh
        copies: list[weakref.ref[Any]] = []

        def remembers(agent: object) -> object:
            copy = fresh(agent)
            if copy is not agent:
                copies.append(weakref.ref(copy))
            return copy

        monkeypatch.setattr(own_adapter, "fresh", remembers)
        names = [f"t{i:03}x" for i in range(320, 320 + self.many // 4)]
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            report = await train_async(
                trainable(self.worker(), reward=_one),
                names,
                client=client,
                episodes_per_task=4,
                retries=0,
                progress=False,
            )
        assert [str(failure.error) for failure in report.failures] == []
        if not copies:
            pytest.skip("`fresh` returns the agent itself, so there are no copies to keep")
        assert len(copies) == len(names) * 4
        del report
        gc.collect()
        assert len([copy for copy in copies if copy() is not None]) < max(self.many // 10, 1)

    # --- Telemetry --------------------------------------------------------------------------------

    async def test_prompts_of_episodes_are_not_exported(self, swarm: ScriptedSwarm) -> None:
        """A span with a prompt would send what the model learns from to another service."""
        names = ["t800x", "t801x"]
        with self.spans() as spans:
            await self.calls(swarm, self.play, *names)
        assert [span for span in spans if any(name in span for name in names)] == []

    async def test_runs_outside_of_episodes_are_traced_as_before(
        self, swarm: ScriptedSwarm
    ) -> None:
        """Also once the framework was prepared for an episode."""
        if not self.traces:
            pytest.skip("`traces` does not declare that this framework exports spans by itself")
        await self.calls(swarm, self.play, "t802x")
        # Outside, the model of the program cannot be reached.
        with self.spans() as spans, contextlib.suppress(Exception):
            await self.play("t000x")
        assert spans

    # --- Failures ---------------------------------------------------------------------------------

    async def test_an_exception_ends_its_own_episode_alone(self, swarm: ScriptedSwarm) -> None:
        """Other episodes of the program continue."""
        broken = "t300x"

        async def fails(task: str) -> float:
            await self.play(task)
            if task == broken:
                raise LookupError("the map is gone")
            return 1.0

        report = await self._train(swarm, fails, ["t301x", broken, "t302x", "t303x"])
        (failure,) = report.failures
        assert failure.task.id == broken
        assert isinstance(failure.error, LookupError)
        assert {result.task.id for result in report.outcomes} == {"t301x", "t302x", "t303x"}

    async def test_an_exception_in_a_tool_ends_its_own_episode_alone(
        self, swarm: ScriptedSwarm
    ) -> None:
        """Or the model receives the error, if the framework does that."""
        report = await self._train(swarm, self.play, ["t304x", "t900x", "t305x", "t306x"])
        failed = [failure.task.id for failure in report.failures]
        assert failed == (["t900x"] if self.tool_errors == "raised" else [])
        for result in report.outcomes:
            self._assert_attributed(swarm, result.episode.episode_id, result.task.id)

    async def _train(self, swarm: ScriptedSwarm, program: Any, names: list[str]) -> Any:
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            return await train_async(
                trainable(program, reward=_one),
                names,
                client=client,
                episodes_per_task=1,
                retries=0,
                progress=False,
            )

    async def test_an_episode_that_is_over_is_not_asked_again_and_again(
        self, swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Retries of the framework stop at an error that is not retryable."""
        requests = 0
        note = Route.note_sent

        def notes(route: Route) -> None:
            nonlocal requests
            requests += 1
            note(route)

        monkeypatch.setattr(Route, "note_sent", notes)
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            episode = await client.begin_episode("t400x")
            await client.abort_episode(episode, "given up")
            program = trainable(self.play, reward=_one)
            try:
                await program.agent(Task("t400x"), episode)
            # The framework chooses the type.
            except Exception:  # noqa: BLE001
                raised = True
            else:
                raised = False
        assert raised, "`play` returned, although its model calls failed: it must raise"
        assert 1 <= requests <= self.dead_requests, (
            f"the whole program made {requests} requests in an episode that is over; "
            f"`dead_requests` allows 1 to {self.dead_requests}"
        )


__all__ = [
    "DOORS",
    "HIDDEN",
    "LAST_IS_TOOL",
    "MANY",
    "PLANNER",
    "REPLIES",
    "TRAPDOOR",
    "WORKER",
    "AgentSuite",
    "Secret",
    "open_telemetry_spans",
    "tool_call",
]
