"""Conversion of rewards to advantages of calls and weights of tokens.

Every call has one advantage, shared by its sampled tokens. It is the sum of two parts:

- **Outcome**: the reward of the call's episode, or of its agent where one was reported
  (`TrainEpisode.agent_rewards`), relative to the same reward of the other episodes of the group
  (`group_advantages`).
- **Process**: rewards for single calls (`TrainEpisode.call_rewards`), credited in one of two ways:

  - ``return_to_go``: the call's discounted return, ``G_k = sum over j >= k of
    discount^(j-k) * r_j``, over this call and the later calls of its episode, minus a baseline. The
    baseline is the mean of G in the other episodes of the group, at the same call number of the
    same agent. An episode without such a call contributes 0. The baseline depends only on other
    episodes, so it adds no bias, even if the agent chooses how many calls it makes (Williams 1992,
    REINFORCE with a baseline; leave-one-out: Kool et al. 2019, "Buy 4 REINFORCE Samples").
  - ``process_supervision``: each reward relative to all call rewards of the group, summed over this
    call and the later ones with the discount. With ``group_std`` and no discount this is GRPO with
    process supervision (Shao et al. 2024, arXiv:2402.03300, section 4.1.3). It assumes that all
    episodes make the same number of calls. Where the agent chooses the number, the sum of baselines
    depends on that choice: the estimate is biased and can have the wrong sign.

With ``return_to_go`` and ``leave_one_out``, the expected policy gradient is exactly the gradient of
the expected return; with ``group_mean`` it is (n-1)/n times that, where n is the group size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ajet_core.timeline.batch import TrainCall, TrainEpisode
from ajet_core.timeline.call import Call

AdvantageMethod = Literal["group_std", "group_mean", "leave_one_out"]
CallCredit = Literal["return_to_go", "process_supervision"]
Aggregation = Literal["token_mean", "call_mean", "episode_mean", "episode_sum"]

STD_EPSILON = 1e-4


def call_advantages(
    episodes: Sequence[TrainEpisode],
    calls: Sequence[Sequence[Call]],
    method: AdvantageMethod,
    discount: float = 1.0,
    credit: CallCredit = "return_to_go",
) -> list[list[float]]:
    """Compute one advantage per call, as described in the module's docstring.

    With ``group_std`` and ``return_to_go`` both parts are divided by the same scale, so that
    rewards of episodes and of calls keep their proportion: ``sqrt(V_o + V_p) + 1e-4`` with the
    unbiased variances of the outcomes and of the centred returns-to-go of all calls of the group.
    If each episode has only one call, a reward for it has the same effect as one for the episode.

    :param calls: calls of each episode, in the order in which they were made.
    :param discount: factor of a reward for each call by which it comes after the credited one.
    :return: advantages in the shape of `calls`.
    """
    if credit == "process_supervision":
        outcomes = _outcomes(episodes, method)
        process = _summed(_normalised_rewards(episodes, calls, method), discount)
        scales = None
    else:
        centring = "group_mean" if method == "group_std" else method
        outcomes = _outcomes(episodes, centring)
        returns = _summed(_rewards(episodes, calls), discount)
        process = _relative_returns(episodes, calls, returns, centring)
        scales = _scales(episodes, outcomes, process) if method == "group_std" else None
    advantages = []
    for episode, its_calls in enumerate(calls):
        given = []
        for call, part in zip(its_calls, process[episode], strict=True):
            key = (episode, call.agent if (episode, call.agent) in outcomes else None)
            value = outcomes[key] + part
            given.append(value / scales[key] if scales is not None and value else value)
        advantages.append(given)
    return advantages


def group_advantages(
    values: Sequence[float], groups: Sequence[Hashable], method: AdvantageMethod
) -> list[float]:
    """Compute each value relative to the values of its group.

    For the n values r of a group:

    - ``group_std``: ``(r - mean(r)) / (std(r) + 1e-4)``, with the unbiased std (n - 1) and the
      epsilon that TRL's GRPOTrainer uses (GRPO, Shao et al. 2024, arXiv:2402.03300, 4.1.2).
    - ``group_mean``: ``r - mean(r)`` (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783).
    - ``leave_one_out``: ``r_i - mean of the others`` (RLOO, Ahmadian 2024, arXiv:2402.14740).

    In a group of one, and in a group whose values are all equal, all advantages are exactly 0.0.

    :return: [len(values)], in the order of `values`.
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


def token_weights(calls: Sequence[TrainCall], aggregation: Aggregation) -> list[float]:
    """Return the weight of each call's tokens; the loss is the weighted sum of token losses.

    With N tokens in C calls of E episodes: ``token_mean`` 1 / N, ``call_mean`` 1 / (C * tokens of
    the call), ``episode_mean`` 1 / (E * tokens of the episode's calls), ``episode_sum`` 1 / E.
    Calls without tokens do not count.

    :param calls: calls of one minibatch, including those with zero advantage.
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


def balanced(
    calls: Sequence[TrainCall], episodes: Sequence[TrainEpisode], aggregation: Aggregation
) -> list[TrainCall]:
    """Return `calls` with advantages shifted so that each group's token losses sum to 0.

    The sum is exactly 0 as long as the policy has not changed since sampling. Why shift: failed
    episodes are often longer than successful ones. If advantages are measured against the mean over
    episodes, the average trained token of a group therefore has a negative advantage. On-policy
    this adds only noise, because the expected gradient of the logprobs of sampled tokens is 0. For
    tokens that earlier weights sampled, that expectation is not 0, and the policy unlearns whatever
    those tokens have in common, such as the form of a tool call. Measuring advantages against the
    mean over token losses removes the effect. With ``token_mean`` this baseline is the mean of
    rewards weighted by length, which has the least variance for gradients of similar norm per token
    (OPO, Hao et al. 2025, arXiv:2505.23585).

    Agents with separate rewards are balanced separately.
    """
    own = {(episode.group, agent) for episode in episodes for agent in episode.agent_rewards}
    keys: list[tuple[str, str | None]] = []
    masses: list[float] = []
    for call, weight in zip(calls, token_weights(calls, aggregation), strict=True):
        group = episodes[call.episode].group
        keys.append((group, call.agent if (group, call.agent) in own else None))
        masses.append(weight * len(call.logprobs))
    total: dict[tuple[str, str | None], float] = {}
    weighed: dict[tuple[str, str | None], float] = {}
    for key, call, mass in zip(keys, calls, masses, strict=True):
        total[key] = total.get(key, 0.0) + mass
        weighed[key] = weighed.get(key, 0.0) + mass * call.advantage
    shift = {key: weighed[key] / mass for key, mass in total.items() if mass}
    return [
        replace(call, advantage=call.advantage - shift.get(key, 0.0))
        for key, call in zip(keys, calls, strict=True)
    ]


def _outcomes(
    episodes: Sequence[TrainEpisode], method: AdvantageMethod
) -> dict[tuple[int, str | None], float]:
    """Return outcome advantages by (episode, agent); agent None is for all without own rewards."""
    plain = group_advantages([e.reward for e in episodes], [e.group for e in episodes], method)
    advantages: dict[tuple[int, str | None], float] = {
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
        advantages[i, name] = advantage
    return advantages


def _rewards(
    episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]]
) -> list[list[float]]:
    """Return the reward of each call, 0.0 if it has none."""
    return [
        [episode.call_rewards.get(call.call_id, 0.0) for call in its_calls]
        for episode, its_calls in zip(episodes, calls, strict=True)
    ]


def _normalised_rewards(
    episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]], method: AdvantageMethod
) -> list[list[float]]:
    """Return each call's reward relative to all call rewards of its group, 0.0 if it has none."""
    normalised = [[0.0] * len(its_calls) for its_calls in calls]
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
        normalised[i][number] = advantage
    return normalised


def _summed(rewards: Sequence[Sequence[float]], discount: float) -> list[list[float]]:
    """Return the discounted sum of each value and the later ones in its episode."""
    sums = []
    for its_rewards in rewards:
        following = 0.0
        backwards = []
        for reward in reversed(its_rewards):
            following = reward + discount * following
            backwards.append(following)
        sums.append(backwards[::-1])
    return sums


def _relative_returns(
    episodes: Sequence[TrainEpisode],
    calls: Sequence[Sequence[Call]],
    returns: Sequence[Sequence[float]],
    method: AdvantageMethod,
) -> list[list[float]]:
    """Return returns-to-go minus the group's baselines for the same agent and call number."""
    groups: dict[str, list[int]] = {}
    for i, episode in enumerate(episodes):
        groups.setdefault(episode.group, []).append(i)
    relative = [[0.0] * len(its_calls) for its_calls in calls]
    for members in groups.values():
        # By agent and call number: the index of that call in each episode that has it.
        slots: dict[tuple[str, int], dict[int, int]] = {}
        for i in members:
            made_by: Counter[str] = Counter()
            for number, call in enumerate(calls[i]):
                slots.setdefault((call.agent, made_by[call.agent]), {})[i] = number
                made_by[call.agent] += 1
        for slot in slots.values():
            values = [returns[i][slot[i]] if i in slot else 0.0 for i in members]
            for i, value in zip(members, _relative(values, method), strict=True):
                if i in slot:
                    relative[i][slot[i]] = value
    return relative


def _scales(
    episodes: Sequence[TrainEpisode],
    outcomes: Mapping[tuple[int, str | None], float],
    process: Sequence[Sequence[float]],
) -> dict[tuple[int, str | None], float]:
    """Return the divisors of advantages, by the keys of `outcomes`.

    :param outcomes: outcome advantages, centred on the mean of each group and agent.
    :param process: returns-to-go, centred in the same way for each call number.
    """
    populations: dict[tuple[str, str | None], list[float]] = {}
    for (i, agent), value in outcomes.items():
        populations.setdefault((episodes[i].group, agent), []).append(value)
    returns: dict[str, list[float]] = {}
    for episode, centred in zip(episodes, process, strict=True):
        returns.setdefault(episode.group, []).extend(centred)
    return {
        (i, agent): math.hypot(
            _std(populations[episodes[i].group, agent]), _std(returns[episodes[i].group])
        )
        + STD_EPSILON
        for i, agent in outcomes
    }


def _std(centred: Sequence[float]) -> float:
    """Return the unbiased standard deviation of centred values."""
    return math.sqrt(math.fsum(c * c for c in centred) / max(1, len(centred) - 1))


def _relative(values: list[float], method: AdvantageMethod) -> list[float]:
    n = len(values)
    # Compare the values: rounding in the mean could leave a tiny difference that std would amplify.
    if all(value == values[0] for value in values):
        return [0.0] * n
    mean = math.fsum(values) / n
    centred = [value - mean for value in values]
    if method == "group_mean":
        return centred
    if method == "leave_one_out":
        # Equal to r_i - (sum - r_i) / (n - 1).
        return [c * n / (n - 1) for c in centred]
    scale = _std(centred) + STD_EPSILON
    return [c / scale for c in centred]
