"""Games of TextArena as task sources, with TextArena itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ajet_sources_gymnasium.textarena_games import TextArenaSource

from ajet_core.errors import ConfigError
from ajet_core.interfaces import ModelEndpoint, Task, TaskSource
from ajet_sources import load_source
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from ajet_testing.suites.source_suite import SourceSuite

GUESS = re.compile(r"\[(\d+)\]$")


def bisected(call: EndpointCall) -> str:
    """The middle of the numbers that the hints leave."""
    low, high = 1, 20
    guess = 0
    for message in call.body["messages"]:
        if message["role"] == "assistant":
            guess = int(message["content"].strip("[]"))
        elif guess and "is higher" in message["content"]:
            low = guess + 1
        elif guess and "is lower" in message["content"]:
            high = guess - 1
    return f"[{(low + high) // 2}]"


class TestGuessTheNumber(SourceSuite):
    episodes = 40

    def make_source(self) -> TaskSource:
        return load_source("textarena:GuessTheNumber-v0?size=20&eval_size=10&max_steps=6")

    def reply(self, source: TaskSource, task: Task, call: EndpointCall, *, solved: bool) -> str:
        # A guess that is not the number, and no end of the game, earns nothing within the limit.
        return bisected(call) if solved else "[0]"


@contextlib.asynccontextmanager
async def opened(name: str, **settings: Any) -> AsyncIterator[Any]:
    source = load_source(f"textarena:{name}", {"size": 8, "eval_size": 0, **settings})
    assert isinstance(vars(source)["_source"], TextArenaSource)
    async with source:
        yield source


def at(endpoint: PlainEndpoint) -> ModelEndpoint:
    return ModelEndpoint(endpoint.base_url, "k", "m")


async def test_the_model_sees_each_answer_of_the_game_once() -> None:
    async with opened("GuessTheNumber-v0") as source:
        with PlainEndpoint(bisected) as endpoint:
            outcome = await source.roll_out(source.tasks("train")[0], at(endpoint))
    assert outcome.reward == 1.0
    first, guess, hint = endpoint.calls[1].body["messages"]
    assert first["content"].count("Guess The Number") == 1
    assert guess == {"role": "assistant", "content": "[10]"}
    assert re.fullmatch(r"\[GAME\] The target number is (higher|lower)\.", hint["content"])


async def test_episodes_at_once_do_not_change_each_others_numbers() -> None:
    """Random FrozenLakes, which games draw from the generator of the process."""

    async def boards(source: Any, *, at_once: bool) -> list[str]:
        async def played(task: Task) -> str:
            async with vars(source)["_source"].play(task) as play:
                turn = await play.act({"content": "[down]"})
                return f"{play.first.shows}\n{turn.shows}"

        tasks = source.tasks("train")
        if at_once:
            return await asyncio.gather(*map(played, tasks))
        return [await played(task) for task in tasks]

    async with opened("FrozenLake-v0-random") as source:
        state = random.getstate()
        one = await boards(source, at_once=False)
        two = await boards(source, at_once=True)
        assert random.getstate() == state
    assert one == two
    assert len(set(one)) > 4


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("GuessTheNumbr-v0", {}, "did you mean 'GuessTheNumber-v0"),
        ("TicTacToe-v0", {}, "only games for one player are supported"),
        ("GuessTheNumber-v0", {"options": {"nope": 1}}, "nope"),
    ],
)
async def test_what_cannot_be_played_is_named_in_a_line(
    name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        async with opened(name, **settings):
            pass
    assert "\n" not in str(raised.value)
