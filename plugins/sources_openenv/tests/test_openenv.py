"""Environments of OpenEnv as task sources, with servers of OpenEnv itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from ajet_sources_openenv.source import OpenEnvSource

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import ModelEndpoint, Task, TaskSource
from ajet_sources import load_source
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.sources.training import train_all
from ajet_testing.suites.source_suite import SourceSuite


class Suite(SourceSuite):
    # More than any server takes at a time.
    episodes = 64

    environment: ClassVar[str]

    @pytest.fixture(autouse=True)
    def its_server(self, server: str) -> None:
        self.url = f"{server}/{self.environment}"

    def make_source(self) -> TaskSource:
        return load_source(f"openenv:{self.url}", {"size": 30, "eval_size": 10})


class TestText(Suite):
    environment = "words"

    def reply(self, source: TaskSource, task: Task, call: EndpointCall, *, solved: bool) -> str:
        return f"<action>word{task.payload['seed'] if solved else ''}</action>"


class TestOneSession(TestText):
    """A server as OpenEnv's own template creates it takes one session at a time."""

    environment = "single"


class TestListedTasks(Suite):
    environment = "listed"

    def reply(self, source: TaskSource, task: Task, call: EndpointCall, *, solved: bool) -> str:
        return call.text.rpartition("Say ")[2].rstrip(".") if solved else "no"


@contextlib.asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Any]:
    source = load_source(f"openenv:{url}", {"size": 8, "eval_size": 0, **settings})
    assert isinstance(vars(source)["_source"], OpenEnvSource)
    async with source:
        yield source


async def counts(server: str, name: str) -> dict[str, int]:
    async with httpx2.AsyncClient() as client:
        counted: dict[str, int] = (await client.get(f"{server}/counts/{name}")).json()
        return counted


def at(endpoint: PlainEndpoint, key: str = "k") -> ModelEndpoint:
    return ModelEndpoint(endpoint.base_url, key, "m")


async def test_the_model_sees_the_observation_and_no_metadata(server: str) -> None:
    async with opened(f"{server}/words") as source:
        with PlainEndpoint(lambda _: "I think. <action>word0</action>") as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    (call,) = endpoint.calls
    system, asked = call.body["messages"]
    assert "<action>" in system["content"]
    assert "the word" in system["content"], "the schema's description"
    assert asked == {"role": "user", "content": "Say word0."}
    assert outcome.reward == 1.0
    assert outcome.components == {"steps": 1.0, "invalid_actions": 0.0}


async def test_json_actions_are_steps_until_the_environment_ends(server: str) -> None:
    answers = iter(
        [
            '```json\n{"direction": "left", "steps": 3}\n```',
            "<action>left</action>",
            'x <action>{"direction": "up", "steps": 9}</action>',
            "[1]",
            '{"direction": "left", "steps": 1}',
        ]
    )
    async with opened(f"{server}/line", invalid_reward=-0.5) as source:
        with PlainEndpoint(lambda _: next(answers)) as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert outcome.reward == pytest.approx(-0.1 + 3 * -0.5 + 1.0)
    assert outcome.components == {"steps": 5.0, "invalid_actions": 3.0}
    system, asked, *rest = endpoint.calls[-1].body["messages"]
    assert "minimum" in system["content"]
    assert "metadata" not in system["content"]
    assert json.loads(asked["content"]) == {"place": 0, "goal": -4}
    said = [message["content"] for message in rest if message["role"] == "user"]
    assert json.loads(said[0]) == {"place": -3, "goal": -4}
    assert "not JSON" in said[1]
    assert "direction: Input should be 'left' or 'right'; steps" in said[2]
    assert "not a JSON object" in said[3]


@pytest.mark.parametrize(
    "answer",
    [
        "{}",
        '{"direction": "left"}',
        '{"direction": "left", "steps": NaN}',
        '{"direction": "left", "steps": 1e999}',
        '{"direction": "left", "steps": 1, "more": [1]}',
        '{"direction": "left", "steps": 1, "via": [{"place": 1}, {"place": "far"}, "sea"]}',
        '{"direction": "left", "steps": 1, "via": {"0": null}}',
        '{"direction": "\\ud800", "steps": 1}',
        "[" * 100_000,
    ],
    ids=["empty", "missing", "nan", "infinite", "more", "union", "table", "surrogate", "deep"],
)
async def test_whatever_is_wrong_with_an_action_is_the_models(server: str, answer: str) -> None:
    """It is an invalid action, never a failure of the environment, which would cost nothing."""
    async with opened(f"{server}/line", max_steps=2, invalid_reward=-0.5) as source:
        with PlainEndpoint(lambda _: answer) as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert outcome.components == {"steps": 2.0, "invalid_actions": 2.0}
    assert outcome.reward == -1.0


async def test_an_invalid_action_can_end_the_episode(server: str) -> None:
    async with opened(f"{server}/line", invalid_action="end", invalid_reward=-1) as source:
        with PlainEndpoint(lambda _: "left") as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert outcome.reward == -1.0
    assert len(endpoint.calls) == 1


async def test_an_episode_ends_at_its_limit_with_what_it_has(server: str) -> None:
    async with opened(f"{server}/line", max_steps=3, reset={"goal": 9}) as source:
        with PlainEndpoint(lambda _: '{"direction": "right", "steps": 1}') as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert outcome.reward == pytest.approx(-0.3)
    assert '"goal": -9' in endpoint.calls[0].text
    assert (await counts(server, "line"))["open"] == 0


def called(number: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call{number}", "type": "function", "function": function}


async def test_tools_of_the_environment_are_the_models(server: str) -> None:
    def answer(call: EndpointCall) -> Mapping[str, Any]:
        turns = sum(message["role"] == "assistant" for message in call.body["messages"])
        calls = (
            [called(0, "add", '{"a": 3, "b": 1}'), called(1, "add", "{a")],
            [called(2, "nope", "{}")],
            [called(3, "submit", '{"answer": "4"}'), called(4, "add", '{"a": 1, "b": 1}')],
        )[turns]
        return {"content": None, "tool_calls": calls}

    async with opened(f"{server}/sums", seed=3) as source:
        with PlainEndpoint(answer) as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
        assert await source.probe(source.tasks("train")[0], "nop") is None
    assert outcome.reward == 1.0
    assert outcome.components == {"steps": 3.0, "invalid_actions": 1.0}
    body = endpoint.calls[-1].body
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "submit"]
    assert body["tools"][0]["function"]["parameters"]["required"] == ["a", "b"]
    results = {
        message["tool_call_id"]: message["content"]
        for message in body["messages"]
        if message["role"] == "tool"
    }
    assert results["call0"] == "4"
    assert "not JSON" in results["call1"]
    assert "nope" in results["call2"]
    assert (await counts(server, "sums"))["open"] == 0


async def test_an_answer_without_a_tool_call_ends_the_episode(server: str) -> None:
    async with opened(f"{server}/sums") as source:
        with PlainEndpoint(lambda _: "I give up") as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert outcome.reward == 0.0
    assert len(endpoint.calls) == 1


async def test_tasks_of_the_environment_come_with_its_splits(server: str) -> None:
    async with opened(f"{server}/listed") as source:
        assert source.splits() == ("train", "test")
        train, test = source.tasks("train"), source.tasks("test")
    assert [task.id for task in train] == ["train-one", "train-two", "train-three"]
    assert train[1].payload == {"split": "train", "index": 1}
    (only,) = test
    assert re.fullmatch(r"test-[0-9a-f]{16}", only.id)


async def test_64_episodes_wait_for_the_only_session(
    server: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(f"{server}/single", size=64) as source:
        before = await counts(server, "single")
        with PlainEndpoint(lambda call: call.text.split()[-1].rstrip(".")) as endpoint:
            outcomes = await asyncio.gather(
                *(source.roll_out(task, at(endpoint)) for task in source.tasks("train"))
            )
    assert [outcome.reward for outcome in outcomes] == [1.0] * 64
    after = await counts(server, "single")
    assert after["begun"] - before["begun"] == 64
    assert after["most"] == 1
    assert after["open"] == 0
    warnings = [its for its in caplog.records if "sessions at a time" in its.message]
    assert len(warnings) == 1
    assert "max_concurrent_envs" in warnings[0].message


async def test_no_more_sessions_are_opened_than_the_settings_allow(server: str) -> None:
    async with opened(f"{server}/words", sessions=2, size=12, seed=50) as source:
        assert source.capacity() == 2
        open_at_once = []

        def answer(call: EndpointCall) -> str:
            response = httpx2.get(f"{server}/counts/words")
            open_at_once.append(response.json()["open"])
            return call.text.split()[-1].rstrip(".")

        with PlainEndpoint(answer) as endpoint:
            await asyncio.gather(
                *(source.roll_out(task, at(endpoint)) for task in source.tasks("train"))
            )
    assert len(open_at_once) == 12
    assert max(open_at_once) <= 2


async def test_sessions_of_others_are_waited_for_up_to_a_limit(server: str) -> None:
    with PlainEndpoint(lambda call: call.text.split()[-1].rstrip(".")) as endpoint:
        async with opened(f"{server}/single") as other, opened(f"{server}/single") as source:
            task = source.tasks("train")[0]
            async with vars(other)["_source"].play(task):
                waiting = asyncio.create_task(source.roll_out(task, at(endpoint)))
                # Its own session was refused, when a third one has been.
                async with opened(f"{server}/single", session_seconds=0.3) as third:
                    with pytest.raises(
                        EnvironmentFailedError, match=r"no free session within 0\.3 s.*lower"
                    ):
                        await third.roll_out(task, at(endpoint))
                assert endpoint.calls == []
            assert (await waiting).reward == 1.0


@pytest.mark.parametrize(
    ("seed", "settings", "said"),
    [
        (900, {}, "reset failed: the reset has a bug"),
        (901, {}, "the environment failed: the step has a bug"),
        (902, {"step_seconds": 0.5}, r"took more than 0\.5 s for a step"),
        (903, {}, "ended the episode of seed-903 and gave no reward"),
        (904, {}, "."),
        # Its own model of pydantic is refused with the code of an action that is none.
        (905, {}, "the environment failed at a valid action: question: Input should be"),
    ],
)
async def test_failures_of_the_environment_abort(
    server: str, seed: int, settings: dict[str, Any], said: str
) -> None:
    async with opened(f"{server}/words", seed=seed, size=1, **settings) as source:
        with PlainEndpoint(lambda _: "hello") as endpoint:
            with pytest.raises(EnvironmentFailedError, match=said):
                await source.roll_out(source.tasks("train")[0], at(endpoint))


@contextlib.asynccontextmanager
async def relay(server: str) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Yields a URL that passes on to the server, and its connections, which can be cut."""
    port = int(server.rpartition(":")[2])
    writers: list[asyncio.StreamWriter] = []
    piping: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, back))
        for one in (pipe(reader, back), pipe(there, writer)):
            piping.add(asyncio.create_task(one))

    listening = await asyncio.start_server(accepted, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", writers
    listening.close()
    for writer in writers:
        writer.close()
    await asyncio.gather(*piping)


async def test_a_lost_connection_is_no_new_session(server: str) -> None:
    """The client of OpenEnv would connect again, to an environment that was not reset."""
    async with relay(server) as (url, writers), opened(f"{url}/line") as source:
        loop = asyncio.get_running_loop()

        def answer(_: EndpointCall) -> str:
            async def cut() -> None:
                for writer in writers:
                    writer.transport.abort()

            asyncio.run_coroutine_threadsafe(cut(), loop).result()
            return '{"direction": "right", "steps": 1}'

        begun = (await counts(server, "line"))["begun"]
        with PlainEndpoint(answer) as endpoint:
            with pytest.raises(EnvironmentFailedError, match="closed the session during a step"):
                await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert (await counts(server, "line"))["begun"] == begun + 1


async def test_cancelled_episodes_leave_no_session(server: str) -> None:
    """Those that have one, and those that wait."""
    asked, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(_: EndpointCall) -> str:
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return "no"

    with PlainEndpoint(answer) as endpoint:
        async with opened(f"{server}/single") as source:
            rolling = [
                asyncio.create_task(source.roll_out(task, at(endpoint)))
                for task in source.tasks("train")
            ]
            first = asyncio.create_task(asked.wait())
            await asyncio.wait([first, *rolling], return_when=asyncio.FIRST_COMPLETED)
            # Otherwise the endpoint, which waits for it, could not end.
            release.set()
            assert first.done(), [one.exception() for one in rolling if one.done()]
            for one in rolling:
                one.cancel()
            await asyncio.wait(rolling)
            assert all(one.cancelled() for one in rolling)
        assert (await counts(server, "single"))["open"] == 0


async def test_checks_find_that_the_template_rewards_anything(server: str) -> None:
    """The environment of ``openenv init`` gives a reward for each letter, and never ends."""
    async with opened(f"{server}/template", max_steps=3) as source:
        task = source.tasks("train")[0]
        nothing, junk = await source.probe(task, "nop"), await source.probe(task, "unknown")
        with PlainEndpoint(lambda _: "<action>12345</action>") as endpoint:
            outcome = await source.roll_out(task, at(endpoint))
    assert (nothing.reward, junk.reward) == (0.0, 3.0)
    assert outcome.reward == pytest.approx(1.5)
    assert '"echoed_message": "12345"' in endpoint.calls[-1].text


@pytest.mark.parametrize(
    ("path", "settings", "said"),
    [
        ("/words", {"action_field": "nope"}, "no field 'nope', but word, loud"),
        ("/line", {"actions": "text"}, "name the one that is the model's text with action_field"),
        ("/words", {"actions": "tools"}, "does not list tools"),
        ("/counts", {}, "is not a server of OpenEnv"),
        ("/words", {"sessions": 0}, "sessions"),
    ],
)
async def test_wrong_settings_are_named(
    server: str, path: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        async with opened(f"{server}{path}", **settings):
            pass
    assert "\n" not in str(raised.value)


async def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(EnvironmentFailedError, match=r"no OpenEnv server answers at .*start the"):
        async with opened("http://127.0.0.1:9"):
            pass
    with pytest.raises(ConfigError, match="write the URL of an OpenEnv server"):
        async with opened("localhost:8000"):
            pass


async def test_episodes_are_trained(server: str, tmp_path: Path) -> None:
    """With a real swarm server: two steps of four tasks."""
    replies = (ScriptedReply(prompt="", says=("word1<|im_end|>", "no<|im_end|>")),)
    with ScriptedSwarm(tmp_path, replies, batch={"tasks": 4, "episodes_per_task": 2}) as swarm:
        async with opened(f"{server}/words") as source:
            report = await train_all(source, swarm)
        assert report.failures == []
        for result in report.outcomes:
            (call,) = swarm.calls(result.episode.episode_id)
            text = swarm.text(call)
            word = f"word{result.task.payload['seed']}"
            assert f"Say {word}." in text
            said = text.rpartition("assistant")[2].replace("<|im_end|>", "").strip()
            assert result.outcome.reward == float(said == word)


async def ajet(*arguments: str, cwd: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ajet_cli.main", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
    )
    out, errors = await process.communicate()
    assert process.returncode is not None
    assert "Traceback" not in errors.decode()
    return process.returncode, out.decode() or errors.decode()


async def test_the_commands_check_and_eval(server: str, tmp_path: Path) -> None:
    name = f"openenv:{server}/single?size=4&eval_size=3"
    code, out = await ajet("check", name, "--json", cwd=tmp_path)
    assert code == 0, out
    with PlainEndpoint(lambda call: call.text.split()[-1].rstrip(".")) as endpoint:
        options = ("--base-url", endpoint.base_url, "--api-key", "k", "--samples", "2", "--json")
        code, out = await ajet("eval", name, "--model", "m", *options, cwd=tmp_path)
    assert code == 0, out
    (measured,) = json.loads(out)
    assert (measured["reward"], measured["episodes"], measured["failed"]) == (1.0, 6, 0)
    code, out = await ajet("check", "openenv:http://127.0.0.1:9", cwd=tmp_path)
    assert code != 0
    assert "start the environment's server first" in out
