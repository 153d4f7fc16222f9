"""Conformance tests for worlds. Subclass `WorldSuite` in a test module."""

from __future__ import annotations

import copy
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from ajet_core.interfaces import World, WorldAnswer, WorldCall, WorldOutcome, WorldPrompt
from ajet_testing.conformance import ConformanceSuite
from ajet_worlds.rehearsal import Policy, Rehearsal, rehearse

__all__ = [
    "MOST_OF_A_NOVICE",
    "SEED",
    "TASKS",
    "UNUSABLE",
    "WorldSuite",
    "policy_named",
    "seeded",
    "total_reward",
]

TASKS = 64
SEED = 0
# Maximum share of full success for a random policy; with more, little is left to learn.
MOST_OF_A_NOVICE = 0.6
UNUSABLE = {
    "nonsense": WorldAnswer("I would rather not say."),
    "wrong tool": WorldAnswer(calls=(WorldCall.of("no_such_tool"),)),
    "broken call": WorldAnswer(calls=(WorldCall("move", "{broken"),)),
}
"""Answers that no world expects."""


def seeded(seed: str | int) -> random.Random:
    """Return the randomness of a policy, which is independent of a task's."""
    return random.Random(f"policy/{seed}")  # noqa: S311 - a puzzle, not a secret


def policy_named(world: World, name: str) -> Policy:
    """Return a policy of the world, or one that gives an answer that no world expects.

    :param name: ``expert``, ``novice``, ``insistent`` (the expert, with its answer a hundred
        times in one), or a key of `UNUSABLE`.
    """
    if name in UNUSABLE:
        return lambda _, __: UNUSABLE[name]
    if name == "insistent":
        return lambda prompt, rng: _repeated(world.expert(prompt, rng))
    policy: Policy = getattr(world, name)
    return policy


# In characters; a model's answer is hardly longer.
_LONGEST = 4000


def _repeated(answer: WorldAnswer) -> WorldAnswer:
    # A world may put an answer into the next prompt, so a longer one would grow without end.
    times = min(100, max(1, _LONGEST // max(1, len(answer.text))))
    return replace(answer, text=times * answer.text, calls=times * answer.calls)


def total_reward(outcome: WorldOutcome) -> float:
    """Return the sum of an episode's rewards: as a whole, by call and by agent."""
    parts = [*outcome.call_rewards.values(), *outcome.agent_rewards.values()]
    return outcome.reward + sum(parts)


class WorldSuite(ConformanceSuite):
    """Conformance tests of a `World`, without server and model.

    .. code-block:: python

        class TestMyWorld(WorldSuite):
            def make_world(self) -> World:
                return MyWorld(MySettings())

    :cvar expert_success: minimum mean success of the expert over 64 tasks.
    """

    expert_success: ClassVar[float] = 1.0

    def make_world(self) -> World:
        """Create a world."""
        raise NotImplementedError

    def test_tasks_are_the_same_for_a_seed_and_splits_have_none_in_common(self) -> None:
        first, second = self.make_world(), self.make_world()
        train = first.task_ids("train", SEED, TASKS)
        assert train == second.task_ids("train", SEED, TASKS)
        assert train[5:9] == first.task_ids("train", SEED, 4, start=5)
        others = [
            *first.task_ids("train", SEED + 1, TASKS),
            *first.task_ids("eval", SEED, TASKS),
            *first.task_ids("eval", SEED + 1, TASKS),
        ]
        assert len({*train, *others}) == 4 * TASKS, "task ids are unique over seeds and splits"

    def test_an_episode_is_the_same_for_a_task_and_the_same_answers(self) -> None:
        for name in ("expert", "novice"):
            assert self._played(name, self.make_world()) == self._played(name, self.make_world())

    def test_an_episode_is_the_same_in_another_process(
        self, other_process: Callable[..., Any]
    ) -> None:
        assert other_process("_played", "novice") == self._played("novice")

    def test_tasks_differ(self) -> None:
        prompts = {str(r.exchanges[0].prompt.messages) for r in self._played("expert")}
        assert len(prompts) > 1

    def test_the_expert_succeeds(self) -> None:
        """It only sees its prompts, so a model can solve every task from what it sees."""
        assert self._success("expert") >= self.expert_success

    def test_the_novice_succeeds_less_often(self) -> None:
        assert self._success("novice") <= MOST_OF_A_NOVICE * self._success("expert")

    def test_the_novice_is_sometimes_rewarded_more_than_at_other_times(self) -> None:
        """Otherwise there is nothing to reinforce."""
        world = self.make_world()
        differing = 0
        for task_id in world.task_ids("train", SEED, TASKS):
            group = [
                rehearse(world, task_id, world.novice, seeded(f"{task_id}/{n}")) for n in range(8)
            ]
            differing += len({total_reward(r.outcome) for r in group}) > 1
        assert differing >= TASKS // 4

    def test_the_expert_is_rewarded_more_than_the_novice(self) -> None:
        expert, novice = (
            statistics.mean(total_reward(r.outcome) for r in self._played(name))
            for name in ("expert", "novice")
        )
        assert expert > novice

    @pytest.mark.parametrize("name", ["expert", "novice", "insistent", *UNUSABLE])
    def test_rewards_keep_to_their_range_and_success_to_0_to_1(self, name: str) -> None:
        world = self.make_world()
        least, most = world.reward_range
        for played in self._played(name, world):
            outcome = played.outcome
            assert 0.0 <= outcome.success <= 1.0
            for reward in (
                outcome.reward,
                *outcome.call_rewards.values(),
                *outcome.agent_rewards.values(),
            ):
                assert least <= reward <= most
            ids = {exchange.answer.id for exchange in played.exchanges}
            assert set(outcome.call_rewards) <= ids, "rewards of calls are those of its own calls"
            agents = {exchange.prompt.agent for exchange in played.exchanges}
            assert set(outcome.agent_rewards) <= agents, "rewarded agents have spoken"

    @pytest.mark.parametrize("name", UNUSABLE)
    def test_unusable_answers_end_an_episode_without_success(self, name: str) -> None:
        for played in self._played(name):
            assert played.outcome.success < 1.0

    def test_tools_are_declared_as_the_protocol_wants_them(self) -> None:
        for played in self._played("expert"):
            for exchange in played.exchanges:
                for tool in exchange.prompt.tools:
                    assert tool["type"] == "function"
                    assert set(tool["function"]) >= {"name", "parameters"}
                names = {tool["function"]["name"] for tool in exchange.prompt.tools}
                for call in exchange.answer.calls:
                    assert call.name in names, "the expert calls tools that are offered"
                    assert isinstance(json.loads(call.arguments), dict)

    def test_episodes_at_the_same_time_do_not_disturb_each_other(self) -> None:
        world = self.make_world()
        one, other = world.task_ids("train", SEED, 2)
        alone = rehearse(self.make_world(), one, world.expert, seeded(SEED)).outcome

        def interrupted(prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
            rehearse(world, other, world.novice, seeded(SEED))
            return world.expert(prompt, rng)

        assert rehearse(world, one, interrupted, seeded(SEED)).outcome == alone

    @pytest.mark.parametrize("name", ["expert", "novice"])
    def test_policies_leave_their_prompts_alone(self, name: str) -> None:
        world = self.make_world()
        policy = policy_named(world, name)

        def watched(prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
            before = copy.deepcopy(prompt)
            answer = policy(prompt, rng)
            assert prompt == before
            return answer

        rehearse(world, world.task_ids("eval", SEED, 1)[0], watched, seeded(SEED))

    def _played(self, name: str, world: World | None = None) -> list[Rehearsal]:
        world = world or self.make_world()
        policy = policy_named(world, name)
        return [
            rehearse(world, task_id, policy, seeded(task_id))
            for task_id in world.task_ids("eval", SEED, TASKS)
        ]

    def _success(self, name: str) -> float:
        return statistics.mean(r.outcome.success for r in self._played(name))
