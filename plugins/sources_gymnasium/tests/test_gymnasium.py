"""Environments of Gymnasium as task sources, with Gymnasium itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ajet_sources_gymnasium.source import GymnasiumSource

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import ModelEndpoint, Task, TaskSource
from ajet_sources import load_source
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.sources.training import train_all
from ajet_testing.suites.source_suite import SourceSuite

SURE = "options.is_slippery=false"
TO_THE_GOAL = ("down", "down", "right", "right", "down", "right")


class TestFrozenLake(SourceSuite):
    # Six calls each.
    episodes = 60

    def make_source(self) -> TaskSource:
        return load_source(f"gymnasium:FrozenLake-v1?{SURE}&size=30&eval_size=10&max_steps=6")

    def reply(self, source: TaskSource, task: Task, call: EndpointCall, *, solved: bool) -> str:
        steps = sum(message["role"] == "assistant" for message in call.body["messages"])
        return TO_THE_GOAL[steps] if solved else "left"


class TestTextActions(SourceSuite):
    def make_source(self) -> TaskSource:
        return load_source("gymnasium:text_worlds:Echo-v0?size=30&eval_size=10")

    def reply(self, source: TaskSource, task: Task, call: EndpointCall, *, solved: bool) -> str:
        word = call.text.rpartition("Say ")[2].rstrip(".")
        return f"<action>{word if solved else 'no'}</action>"


@contextlib.asynccontextmanager
async def opened(name: str, **settings: Any) -> AsyncIterator[Any]:
    source = load_source(f"gymnasium:{name}", {"size": 8, "eval_size": 0, **settings})
    assert isinstance(vars(source)["_source"], GymnasiumSource)
    async with source:
        yield source


def answers(*texts: str) -> PlainEndpoint:
    """A model that says these, one after the other."""

    def answer(call: EndpointCall) -> str:
        return texts[sum(message["role"] == "assistant" for message in call.body["messages"])]

    return PlainEndpoint(answer)


def at(endpoint: PlainEndpoint) -> ModelEndpoint:
    return ModelEndpoint(endpoint.base_url, "k", "m")


async def test_the_model_sees_rules_actions_and_the_lake() -> None:
    async with opened("FrozenLake-v1", options={"is_slippery": False}) as source:
        with answers("<action> Right. </action>", "1", "up?", "left", "down", "DOWN") as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert outcome.reward == 0.0
    assert outcome.components == {"steps": 2.0, "invalid_actions": 0.0}
    system, asked, *_ = endpoint.calls[0].body["messages"]
    assert system["content"].startswith("Frozen lake involves crossing")
    assert "left, down, right, up, or the numbers from 0 to 3" in system["content"]
    assert asked["content"] == "[S]FFF\nFHFH\nFFFH\nHFFG\nobservation: 0"
    moved = endpoint.calls[1].body["messages"][-1]["content"]
    assert moved == "  (Right)\nS[F]FF\nFHFH\nFFFH\nHFFG\nobservation: 1"


async def test_invalid_actions_do_not_move_the_environment() -> None:
    settings = {"options": {"is_slippery": False}, "invalid_reward": -0.25}
    async with opened("FrozenLake-v1", **settings) as source:
        with answers("I go down", "4", "²", *TO_THE_GOAL) as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    async with opened("FrozenLake-v1", invalid_action="end", **settings) as source:
        with answers("sideways") as ended:
            short = await source.roll_out(source.tasks("train")[0], at(ended))
    assert outcome.reward == 1.0 - 3 * 0.25
    assert outcome.components == {"steps": 9.0, "invalid_actions": 3.0}
    said = endpoint.calls[1].body["messages"][-1]["content"]
    assert said == (
        "That is not an action. Actions are left, down, right, up, or the numbers from 0 to 3."
    )
    assert short.reward == -0.25
    assert len(ended.calls) == 1


async def test_a_seed_decides_the_reset_and_what_follows() -> None:
    async with opened("Blackjack-v1", size=20, reward_range=[-1, 1]) as source:
        first, again = [], []
        for seen in (first, again):
            with PlainEndpoint(lambda _: "hit") as endpoint:
                for task in source.tasks("train"):
                    outcome = await source.roll_out(task, at(endpoint))
                    seen.append((outcome.reward, endpoint.calls[-1].text))
    assert first == again
    assert len({text for _, text in first}) > 10
    assert "observation: (" in first[0][1]
    assert "np." not in first[0][1]


async def test_discrete_actions_may_begin_elsewhere_and_be_named() -> None:
    async with opened("text_worlds:Shifted-v0", actions=["down", "stay", "up"]) as source:
        rewards = []
        for said in ("down", "Stay", "up", "1", "-1"):
            with answers(said) as endpoint:
                rewards.append(await source.roll_out(source.tasks("train")[0], at(endpoint)))
    assert [outcome.reward for outcome in rewards] == [-1.0, 0.0, 1.0, 1.0, -1.0]


async def test_texts_must_be_in_their_space() -> None:
    async with opened("text_worlds:Echo-v0", reset={"word": "sea"}) as source:
        with answers("<action>Sea!</action>", "sea") as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert outcome.reward == 1.0
    assert outcome.components["invalid_actions"] == 1.0
    system, asked, *_ = endpoint.calls[0].body["messages"]
    assert system["content"].startswith("Say the word that is shown.")
    assert asked["content"] == "Say sea."


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("reset", "the environment's reset failed: RuntimeError: the reset has a bug"),
        ("step", "the environment's step failed: RuntimeError: the step has a bug"),
        ("nan", "no finite sum"),
    ],
)
async def test_failures_of_the_environment_abort(fault: str, said: str) -> None:
    async with opened("text_worlds:Echo-v0", options={"fault": fault}) as source:
        with answers("tree") as endpoint, pytest.raises(EnvironmentFailedError, match=said):
            await source.roll_out(source.tasks("train")[0], at(endpoint))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("FrozenLak-v1", {}, "Did you mean: `FrozenLake`?"),
        ("FrozenLake-v9", {}, "[ `v1` ]"),
        ("Taxi-v3", {}, "use `Taxi-v4` instead"),
        ("", {}, "such as gymnasium:FrozenLake-v1"),
        ("no_such_module:X-v0", {}, "No module named 'no_such_module'"),
        ("LunarLander-v3", {}, 'pip install "gymnasium[box2d]"'),
        ("Pendulum-v1", {}, "only Discrete and Text are supported"),
        ("text_worlds:Torque-v0", {}, "Box(-1.0, 1.0"),
        ("FrozenLake-v1", {"options": {"slippery": True}}, "slippery"),
        ("FrozenLake-v1", {"actions": ["left", "right"]}, "give 4 different names"),
        ("Blackjack-v1", {"show": "text"}, "set show=observation"),
    ],
)
async def test_what_cannot_be_used_is_named_in_a_line(
    name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        async with opened(name, **settings):
            pass
    assert "\n" not in str(raised.value)


async def test_episodes_are_trained(tmp_path: Path) -> None:
    """With a real swarm server: two steps of four tasks."""
    replies = (ScriptedReply(prompt="", says=("tree<|im_end|>", "lake<|im_end|>")),)
    with ScriptedSwarm(tmp_path, replies, batch={"tasks": 4, "episodes_per_task": 2}) as swarm:
        async with opened("text_worlds:Echo-v0") as source:
            report = await train_all(source, swarm)
        assert report.failures == []
        for result in report.outcomes:
            (call,) = swarm.calls(result.episode.episode_id)
            asked, _, said = swarm.text(call).rpartition("assistant")
            said = said.replace("<|im_end|>", "").strip()
            assert result.outcome.reward == float(f"Say {said}." in asked)


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


async def test_the_commands_check_and_eval(tmp_path: Path) -> None:
    name = f"gymnasium:FrozenLake-v1?{SURE}&size=4&eval_size=3&max_steps=8"
    code, out = await ajet("check", name, cwd=tmp_path)
    assert code == 0, out
    with answers(*TO_THE_GOAL) as endpoint:
        options = ("--base-url", endpoint.base_url, "--api-key", "k", "--samples", "2", "--json")
        code, out = await ajet("eval", name, "--model", "m", *options, cwd=tmp_path)
    assert code == 0, out
    (measured,) = json.loads(out)
    assert (measured["reward"], measured["episodes"], measured["failed"]) == (1.0, 6, 0)
    code, out = await ajet("check", "gymnasium:Pendulum-v1", cwd=tmp_path)
    assert code != 0
    assert "only Discrete and Text" in out


def test_gymnasium_is_imported_when_a_source_is_created() -> None:
    code = (
        "import sys; from ajet_installation.interpreters import local_manager; "
        "assert 'gymnasium' in local_manager().names('source'); "
        "assert 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
