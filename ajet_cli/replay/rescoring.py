"""Rewards and advantages of recorded episodes with another reward function."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ajet_cli.replay.recorded import Preparation, RecordedStep
from ajet_core.errors import RequestError
from ajet_core.interfaces import TrainerInfo
from ajet_core.timeline import Call
from ajet_server.store.store_reader import StoredEpisode

RewardFunction = Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True, slots=True)
class Rescored:
    """The effect of other rewards on a step.

    :param rewards: mean reward as recorded, and with the function.
    :param changed: episodes whose reward differs.
    :param turned: calls whose advantage has the other sign, or is 0 in one of the two.
    :param equal_tasks: tasks all of whose rewards are equal, before and after.
    """

    step: int
    episodes: int
    calls: int
    tasks: int
    rewards: tuple[float, float]
    changed: int
    turned: int
    equal_tasks: tuple[int, int]


def load_reward(name: str) -> RewardFunction:
    """Import a function, also from the current directory.

    :param name: ``module:function``.
    :raises RequestError: there is no such function.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise RequestError(f"--reward {name!r}: expected module:function, such as rewards:score")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded = getattr(importlib.import_module(module), function)
    # Anything may go wrong in a module of the user.
    except Exception as error:
        raise RequestError(
            f"--reward {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise RequestError(f"--reward {name!r} is not a function")
    return loaded  # type: ignore[no-any-return]


def episode_view(episode: StoredEpisode) -> dict[str, Any]:
    """Return what a reward function gets of an episode."""
    record = episode.record
    return {
        "episode_id": record.episode_id,
        "task_id": record.task_id,
        "tag": record.tag,
        "reward": record.reward,
        "components": dict(record.components),
        "call_rewards": dict(record.call_rewards),
        "agent_rewards": dict(record.agent_rewards),
        "metadata": dict(record.metadata),
        "calls": [_call_view(call) for call in episode.calls if call.finish_reason != "abort"],
    }


def _call_view(call: Call) -> dict[str, Any]:
    answer = None if call.answer is None else _message(call.answer)
    return {
        "call_id": call.call_id,
        "agent": call.agent,
        "messages": [_message(placed.text) for placed in call.conversation()],
        "answer": answer,
        "finish_reason": call.finish_reason,
    }


def _message(text: Any) -> dict[str, str]:
    others = ("reasoning", "tool_calls", "tool_call_id", "name")
    return {
        "role": text.role,
        "content": text.content,
        **{name: value for name in others if (value := getattr(text, name))},
    }


def rescore(step: RecordedStep, preparation: Preparation, reward: RewardFunction) -> Rescored:
    """Compare the rewards and advantages of a step with those of a reward function.

    :raises RequestError: the function failed, or returned no finite number.
    """
    scored = [_with_reward(episode, reward) for episode in step.episodes]
    other = replace(step, episodes=scored)
    nobody = TrainerInfo(parameters=0, trainable_parameters=0, device="")
    before, after = (preparation.data(one, nobody) for one in (step, other))
    metrics, other_metrics = before.metrics(), after.metrics()
    advantages = {call.call_id: call.advantage for call in after.batch.calls}
    turned = sum(
        _sign(call.advantage) != _sign(advantages.get(call.call_id, 0.0))
        for call in before.batch.calls
    )
    pairs = zip(step.episodes, scored, strict=True)
    return Rescored(
        step=step.number,
        episodes=len(scored),
        calls=len(before.batch.calls),
        tasks=int(metrics["tasks"]),
        rewards=(metrics["reward_mean"], other_metrics["reward_mean"]),
        changed=sum(one.record.reward != two.record.reward for one, two in pairs),
        turned=turned,
        equal_tasks=(int(metrics["tasks_equal"]), int(other_metrics["tasks_equal"])),
    )


def _with_reward(episode: StoredEpisode, reward: RewardFunction) -> StoredEpisode:
    episode_id = episode.record.episode_id
    try:
        value = float(reward(episode_view(episode)))
    # Anything may go wrong in a function of the user.
    except Exception as error:
        raise RequestError(
            f"the reward function failed for episode {episode_id}: {type(error).__name__}: {error}"
        ) from error
    if not math.isfinite(value):
        raise RequestError(f"the reward function returned {value} for episode {episode_id}")
    return replace(episode, record=replace(episode.record, reward=value))


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
