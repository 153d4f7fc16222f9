"""Advantages from verl's own estimators, which replace those of the batch.

An estimator receives one *response* for each episode: all tokens that were sampled in it, in the
order of its calls. verl does the same with a conversation, whose response is masked to the sampled
tokens. So a baseline counts each episode once, however many sequences it is trained as. The
episode's reward is at its last token, and rewards of single calls are at the last tokens of these
calls. If an agent has its own reward, its calls form a separate response, which is compared with
those of the same agent.

Import this module after `ajet_backend_verl.surroundings.prepare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from verl import DataProto
from verl.trainer.config import AlgoConfig

from ajet_backend_verl.part import Floats
from ajet_backend_verl.tensors import padded
from ajet_core.errors import TrainerError
from ajet_core.timeline import TrainBatch
from ajet_training.rows import Row


@dataclass(frozen=True, slots=True)
class Response:
    """The calls that an estimator treats as one answer.

    :param calls: indices of its calls, in the order they were made; each has tokens.
    :param group: responses of one group share a baseline.
    :param reward: reward of the whole response.
    """

    calls: list[int]
    group: str
    reward: float


def responses(batch: TrainBatch) -> list[Response]:
    """Return the responses of a batch, with the calls of each in the order they were made."""
    by_agent: dict[tuple[int, str | None], list[int]] = {}
    for number, call in enumerate(batch.calls):
        if not call.logprobs:
            continue
        rewarded = call.agent in batch.episodes[call.episode].agent_rewards
        by_agent.setdefault((call.episode, call.agent if rewarded else None), []).append(number)
    its_responses = []
    for (episode, agent), calls in by_agent.items():
        of = batch.episodes[episode]
        reward = of.reward if agent is None else of.agent_rewards[agent]
        # Names of groups and agents may contain any characters.
        group = repr((of.group, agent))
        its_responses.append(Response(calls, group, reward))
    return its_responses


def estimated(batch: TrainBatch, rows: Sequence[Row], config: AlgoConfig) -> list[Row]:
    """Return the rows with advantages from verl's ``config.adv_estimator``.

    :raises TrainerError: the estimator does not support the batch.
    """
    its_responses = responses(batch)
    if not its_responses:
        return list(rows)
    by_call = _by_call(batch, its_responses, _estimate(batch, its_responses, config))
    return [_with_advantages(row, by_call) for row in rows]


def _estimate(
    batch: TrainBatch, its_responses: Sequence[Response], config: AlgoConfig
) -> torch.Tensor:
    """Return [responses, T] advantages."""
    # Imported here, because the import takes seconds and other runs do not need it.
    from verl.trainer.ppo.ray_trainer import compute_advantage

    sizes = [sum(len(batch.calls[call].logprobs) for call in each.calls) for each in its_responses]
    mask = padded([[1.0] * size for size in sizes])
    data = DataProto.from_dict(
        tensors={
            "token_level_rewards": padded([_rewards(batch, each) for each in its_responses]),
            "response_mask": mask,
        },
        non_tensors={"uid": np.array([each.group for each in its_responses], dtype=object)},
    )
    try:
        data = compute_advantage(
            data,
            config.adv_estimator,
            gamma=config.gamma,
            norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
            config=config,
        )
    except (ValueError, AssertionError) as error:
        raise TrainerError(
            f"verl's estimator {config.adv_estimator} does not support the batch "
            f"{batch.batch_id}: {error}",
            param="trainer.settings.adv_estimator",
        ) from error
    advantages: torch.Tensor = data.batch["advantages"]
    return advantages.float()


def _rewards(batch: TrainBatch, response: Response) -> list[float]:
    token_rewards: list[float] = []
    episode = batch.episodes[batch.calls[response.calls[0]].episode]
    rewards = MappingProxyType(episode.call_rewards)
    for number in response.calls:
        call = batch.calls[number]
        token_rewards += [0.0] * len(call.logprobs)
        token_rewards[-1] += rewards.get(call.call_id, 0.0)
    token_rewards[-1] += response.reward
    return token_rewards


def _by_call(
    batch: TrainBatch, its_responses: Sequence[Response], advantages: torch.Tensor
) -> dict[int, Floats]:
    by_call: dict[int, Floats] = {}
    for response, row in zip(its_responses, advantages.numpy(), strict=True):
        start = 0
        for number in response.calls:
            end = start + len(batch.calls[number].logprobs)
            by_call[number] = row[start:end]
            start = end
    return by_call


def _with_advantages(row: Row, by_call: dict[int, Floats]) -> Row:
    values = [0.0] * len(row.completion)
    for span in row.spans:
        of_call = by_call[span.call][span.start : span.start + span.length]
        values[span.offset : span.offset + span.length] = of_call.tolist()
    return replace(row, advantages=values)
