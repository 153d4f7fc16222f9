"""From rewards to advantages and weights: which tokens a reward is about, and how much each counts.

Every call has one advantage, shared by its sampled tokens, and is the sum of two parts:

- **Outcome**: the reward of its episode, or that of its agent where one was reported
  (`TrainEpisode.agent_rewards`), relative to the same reward of the other episodes of the group
  (`group_advantages`).
- **Process**: rewards for single calls (`TrainEpisode.call_rewards`), each relative to all call rewards of the
  group, summed over this call and the later ones of its episode with a discount per call:
  ``sum over j >= k of discount^(j-k) * normalised(r_j)``; calls without a reward add nothing. With
  ``group_std`` and no discount this is GRPO with process supervision (Shao et al. 2024,
  arXiv:2402.03300, section 4.1.3).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal

from ajet_core.timeline.batch import TrainCall, TrainEpisode
from ajet_core.timeline.call import Call

AdvantageMethod = Literal["group_std", "group_mean", "leave_one_out"]
Aggregation = Literal["token_mean", "call_mean", "episode_mean", "episode_sum"]

STD_EPSILON = 1e-4


def call_advantages(
    episodes: Sequence[TrainEpisode],
    calls: Sequence[Sequence[Call]],
    method: AdvantageMethod,
    discount: float = 1.0,
) -> list[list[float]]:
    """One advantage per call, as this module's description says.

    :param calls: of each episode, in the order they were made.
    :param discount: of a call's reward, per call between it and the call it is credited to.
    :return: in the shape of `calls`.
    """
    outcomes = _outcomes(episodes, method)
    process = _process(episodes, calls, method)
    advantages = []
    for episode, made in enumerate(calls):
        following = 0.0
        backwards = []
        for number in reversed(range(len(made))):
            following = process[episode][number] + discount * following
            agent = made[number].agent
            outcome = outcomes.get((episode, agent), outcomes[episode, None])
            backwards.append(outcome + following)
        advantages.append(backwards[::-1])
    return advantages


def group_advantages(
    values: Sequence[float], groups: Sequence[Hashable], method: AdvantageMethod
) -> list[float]:
    """Each value relative to the values of the same group.

    With the n values r of a group:

    - ``group_std``: ``(r - mean(r)) / (std(r) + 1e-4)``, with the unbiased std (n - 1) and the epsilon
      that TRL's GRPOTrainer uses (GRPO, Shao et al. 2024, arXiv:2402.03300, eq. in section 4.1.2).
    - ``group_mean``: ``r - mean(r)`` (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783).
    - ``leave_one_out``: ``r_i - mean of the others`` (RLOO, Ahmadian et al. 2024, arXiv:2402.14740).

    A group of one, and a group whose values are all equal, has advantages of exactly 0.0.

    :return: [len(values)], in their order.
    """
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    advantages = [0.0] * len(values)
    for indices in members.values():
        relative = _relative([values[i] for i in indices], method)
        for i, advantage in zip(indices, relative, strict=True):
            advantages[i] = advantage
    return advantages


def rewards_differ(
    outcomes: Iterable[tuple[float, Mapping[str, float], Mapping[str, float]]],
) -> bool:
    """Whether any advantage of a group can be other than 0.

    :param outcomes: of each episode its reward, call rewards and agent rewards.
    """
    first: dict[str | int, float] = {}
    for reward, calls, agents in outcomes:
        # The rewards of calls are one population, those of each agent another, the episodes' a third.
        populations: list[tuple[str | int, float]] = [(0, reward), *agents.items()]
        populations += [(1, value) for value in calls.values()]
        if any(first.setdefault(key, value) != value for key, value in populations):
            return True
    return False


def token_weights(calls: Sequence[TrainCall], aggregation: Aggregation) -> list[float]:
    """The weight of each token of each call, so that the weighted sum of all token losses is the aggregate.

    With N tokens in C calls of E episodes: ``token_mean`` 1 / N, ``call_mean`` 1 / (C * tokens of the
    call), ``episode_mean`` 1 / (E * tokens of the episode's calls), ``episode_sum`` 1 / E. Calls without
    tokens do not count.

    :param calls: those of one minibatch, zero advantages included.
    :return: [len(calls)].
    """
    sizes = [len(call.logprobs) for call in calls]
    if aggregation == "token_mean":
        total = sum(sizes)
        return [1.0 / total if size else 0.0 for size in sizes]
    if aggregation == "call_mean":
        count = sum(size > 0 for size in sizes)
        return [1.0 / (count * size) if size else 0.0 for size in sizes]
    per_episode: dict[int, int] = {}
    for call, size in zip(calls, sizes, strict=True):
        if size:
            per_episode[call.episode] = per_episode.get(call.episode, 0) + size
    count = len(per_episode)
    if aggregation == "episode_sum":
        return [1.0 / count if size else 0.0 for size in sizes]
    return [
        1.0 / (count * per_episode[call.episode]) if size else 0.0
        for call, size in zip(calls, sizes, strict=True)
    ]


def _outcomes(
    episodes: Sequence[TrainEpisode], method: AdvantageMethod
) -> dict[tuple[int, str | None], float]:
    """Outcome advantage by episode and agent; the agent None is every agent without a reward of its own."""
    plain = group_advantages([e.reward for e in episodes], [e.group for e in episodes], method)
    found: dict[tuple[int, str | None], float] = {
        (i, None): advantage for i, advantage in enumerate(plain)
    }
    named = [
        (i, name, reward)
        for i, episode in enumerate(episodes)
        for name, reward in episode.agent_rewards.items()
    ]
    relative = group_advantages(
        [reward for _, _, reward in named],
        [(episodes[i].group, name) for i, name, _ in named],
        method,
    )
    for (i, name, _), advantage in zip(named, relative, strict=True):
        found[i, name] = advantage
    return found


def _process(
    episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]], method: AdvantageMethod
) -> list[list[float]]:
    """The normalised reward of each call, 0.0 where it has none."""
    found = [[0.0] * len(made) for made in calls]
    places = [
        (i, number)
        for i, episode in enumerate(episodes)
        for number, call in enumerate(calls[i])
        if call.call_id in episode.call_rewards
    ]
    relative = group_advantages(
        [episodes[i].call_rewards[calls[i][number].call_id] for i, number in places],
        [episodes[i].group for i, _ in places],
        method,
    )
    for (i, number), advantage in zip(places, relative, strict=True):
        found[i][number] = advantage
    return found


def _relative(values: list[float], method: AdvantageMethod) -> list[float]:
    n = len(values)
    # Tested on the values: rounding in the mean could leave a tiny difference that std would blow up.
    if all(value == values[0] for value in values):
        return [0.0] * n
    mean = math.fsum(values) / n
    centred = [value - mean for value in values]
    if method == "group_mean":
        return centred
    if method == "leave_one_out":
        # r_i - (sum - r_i) / (n - 1), written with the centred values.
        return [c * n / (n - 1) for c in centred]
    std = math.sqrt(math.fsum(c * c for c in centred) / (n - 1))
    return [c / (std + STD_EPSILON) for c in centred]
