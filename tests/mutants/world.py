"""Mutations of the worlds."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

from ajet_core.interfaces import WorldAnswer, WorldCall, WorldOutcome, WorldPrompt
from ajet_worlds import bandit, gridwalk, mine, pair
from ajet_worlds.bandit import BanditWorld
from ajet_worlds.grid import GridWorld
from ajet_worlds.gridwalk import GridWalk
from ajet_worlds.mine import MineWorld
from ajet_worlds.pair import PairWorld
from tests.mutants.planting import Mutants, around, put

FILE = "tests/worlds/test_worlds.py"
grid = Mutants("world", f"{FILE}::TestGrid")
bandits = Mutants("world", f"{FILE}::TestBandit")
mines = Mutants("world", f"{FILE}::TestMine")
pairs = Mutants("world", f"{FILE}::TestPair")
ALL = (grid, bandits, mines, pairs)


def outcomes(world: Any, change: Any) -> None:
    """Change the outcomes of a world."""

    async def play(original: Any, self: Any, task_id: str, chat: Any) -> WorldOutcome:
        return change(await original(self, task_id, chat))

    around(world, "play", play)


def randomness(module: Any, seed: Any) -> None:
    """Give a module another generator for a seed."""

    class Seeded:
        def __getattr__(self, name: str) -> Any:
            return getattr(random, name)

        def Random(self, value: str) -> random.Random:  # noqa: N802 - as in the module
            return random.Random(seed(value))

    module.random = Seeded()


@bandits
def tasks_depend_on_chance() -> None:
    randomness(bandit, lambda _: None)


@bandits
def tasks_depend_on_the_process() -> None:
    randomness(bandit, hash)


@bandits
def tasks_depend_on_the_time() -> None:
    randomness(bandit, lambda seed: f"{seed}{time.monotonic_ns()}")


@bandits
def all_tasks_are_the_same() -> None:
    randomness(bandit, lambda _: "the same")


@bandits
def evaluation_has_the_tasks_of_training() -> None:
    def ids(original: Any, self: Any, split: str, *arguments: Any, **named: Any) -> list[str]:
        return original(self, "train", *arguments, **named)

    around(BanditWorld, "task_ids", ids)


@bandits
def the_seed_is_not_used() -> None:
    def ids(original: Any, self: Any, split: str, seed: int, *rest: Any, **named: Any) -> Any:
        return original(self, split, 0, *rest, **named)

    around(BanditWorld, "task_ids", ids)


@bandits
def every_page_of_tasks_is_the_first() -> None:
    def ids(original: Any, self: Any, split: str, seed: int, count: int, start: int = 0) -> Any:
        return original(self, split, seed, count)

    around(BanditWorld, "task_ids", ids)


@bandits
def the_novice_is_an_expert() -> None:
    put(BanditWorld, "novice", BanditWorld.expert)


@bandits
def the_expert_is_a_novice() -> None:
    put(BanditWorld, "expert", BanditWorld.novice)


@bandits
def nothing_is_rewarded() -> None:
    outcomes(BanditWorld, lambda outcome: replace(outcome, reward=0.0))


@bandits
def any_answer_is_right() -> None:
    outcomes(BanditWorld, lambda outcome: replace(outcome, success=1.0))


@bandits
def rewards_leave_their_range() -> None:
    outcomes(BanditWorld, lambda outcome: replace(outcome, reward=100 * outcome.reward))


@bandits
def an_invalid_answer_raises() -> None:
    def play(original: Any, self: Any, task_id: str, chat: Any) -> Any:
        class Strict:
            async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
                answer = await chat.ask(prompt)
                int(answer.text)
                return answer

        return original(self, task_id, Strict())

    around(BanditWorld, "play", play)


@bandits
def the_world_waits_for_something_else() -> None:
    async def play(original: Any, self: Any, task_id: str, chat: Any) -> WorldOutcome:
        import asyncio

        await asyncio.sleep(0)
        return await original(self, task_id, chat)

    around(BanditWorld, "play", play)


@bandits
def the_expert_remembers_the_last_episode() -> None:
    def expert(original: Any, self: Any, prompt: WorldPrompt, rng: Any) -> WorldAnswer:
        last, self.last = self.__dict__.get("last"), original(self, prompt, rng)
        return last or self.last

    around(BanditWorld, "expert", expert)


@bandits
def prompts_are_those_of_the_last_episode() -> None:
    """One list of messages for all episodes."""
    kept: list[Any] = []

    def prompt(original: Any, self: Any, messages: Any, *rest: Any, **named: Any) -> None:
        kept[:] = messages
        original(self, kept, *rest, **named)

    around(WorldPrompt, "__init__", prompt)


@grid
def the_walk_is_one_for_all_episodes() -> None:
    walks: list[GridWalk] = []

    def make(task_id: str) -> GridWalk:
        if not walks or walks[0].done:
            walks[:] = [GridWalk(task_id)]
        return walks[0]

    import ajet_worlds.grid as module

    put(module, "GridWalk", make)


@grid
def tools_have_no_parameters() -> None:
    gridwalk.TOOLS[0]["function"].pop("parameters")


@grid
def the_expert_calls_another_tool() -> None:
    def expert(original: Any, self: Any, prompt: WorldPrompt, rng: Any) -> WorldAnswer:
        answer = original(self, prompt, rng)
        calls = tuple(replace(call, name="walk") for call in answer.calls)
        return replace(answer, calls=calls) if rng.random() < 0.02 else answer

    around(GridWorld, "expert", expert)


@grid
def arguments_that_are_not_json_raise() -> None:
    import json

    def call(original: Any, self: Any, name: str, arguments: str) -> str:
        json.loads(arguments)
        return original(self, name, arguments)

    around(GridWalk, "call", call)


@grid
def an_unknown_tool_succeeds() -> None:
    def call(original: Any, self: Any, name: str, arguments: str) -> str:
        if name == "no_such_tool":
            self.position = self.goal
            name = "move"
            around(type(self), "outcome", lambda o, s: replace(o(s), success=True))
            self.reject()
            return "done"
        return original(self, name, arguments)

    around(GridWalk, "call", call)


@grid
def the_expert_writes_into_its_prompt() -> None:
    def expert(original: Any, self: Any, prompt: WorldPrompt, rng: Any) -> WorldAnswer:
        answer = original(self, prompt, rng)
        prompt.messages[0]["seen"] = True
        return answer

    around(GridWorld, "expert", expert)


@grid
def the_goal_is_not_in_the_prompt() -> None:
    """The expert knows it from elsewhere, which no model could."""
    walks: list[GridWalk] = []

    def make(original: Any, self: Any, task_id: str) -> None:
        original(self, task_id)
        walks.append(self)

    around(GridWalk, "__init__", make)

    def play(original: Any, self: Any, task_id: str, chat: Any) -> Any:
        class Blind:
            wait = chat.wait

            async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
                messages = [{**m, "content": "?"} for m in prompt.messages]
                return await chat.ask(replace(prompt, messages=messages))

        return original(self, task_id, Blind())

    around(GridWorld, "play", play)
    import ajet_worlds.grid as module

    put(module, "_good_directions", lambda _: gridwalk.directions_in(walks[-1].observation()))


@mines
def rewards_have_the_ids_of_other_calls() -> None:
    outcomes(
        MineWorld,
        lambda o: replace(o, call_rewards={f"call-{i}": v for i, v in o.call_rewards.items()}),
    )


@mines
def calls_of_one_answer_are_rewarded_without_end() -> None:
    mine.MAX_CALLS = 60


@mines
def the_novice_stops_at_once() -> None:
    stop = WorldAnswer(calls=(WorldCall.of("stop"),))
    put(MineWorld, "novice", lambda self, prompt, rng: stop)


@pairs
def an_agent_that_said_nothing_is_rewarded() -> None:
    outcomes(
        PairWorld,
        lambda o: replace(
            o, agent_rewards=dict.fromkeys((pair.GUIDE, pair.FOLLOWER), 0.0) | dict(o.agent_rewards)
        ),
    )


@pairs
def agents_earn_without_end() -> None:
    outcomes(
        PairWorld,
        lambda o: replace(o, agent_rewards={a: 2 * v for a, v in o.agent_rewards.items()}),
    )


@pairs
def success_is_counted_and_not_averaged() -> None:
    outcomes(PairWorld, lambda o: replace(o, success=o.success * pair.ROUNDS))
