"""Statistics of a batch that show whether it is fit for training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ajet_core.interfaces import EpisodeRecord
from ajet_core.timeline import Call, TrainCall
from ajet_server.admission.task_group import rewards_differ
from ajet_server.averages import correlation, mean
from ajet_server.store.call_metadata import MALFORMED_CALLS

TAG_FACTS = (
    "tasks",
    "episodes",
    "reward_mean",
    "reward_std",
    "calls",
    "calls_malformed",
    "tokens_per_call",
    "sampled_entropy",
)
"""The statistics that `tag_facts` computes for a tag."""

COMPONENT_MEAN = "component_mean"
"""The mean of a component of the reward is the metric ``component_mean/NAME``."""

SUCCESS = "success"
"""The component by which rewards are judged: 1 if the task was solved, 0 if not."""

# Clients choose the names, and each is a metric of its own.
_COMPONENTS = 16
_FAILED = ("error", "traceback")
_COMPARED_CHARS = 400


def batch_facts(
    records: Sequence[EpisodeRecord], calls: Sequence[Call], credited: Sequence[TrainCall]
) -> dict[str, float]:
    """Return numbers for the step's summary, with the names of ``docs/metrics.md``.

    :param calls: of all episodes, without those that were aborted.
    :param credited: the trained calls, with their advantages before these are balanced: afterwards
        the sum is always 0, even if episodes are missing.
    """
    groups: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    equal = sum(not differ(members) for members in groups.values())
    calls_of: dict[str, list[Call]] = {}
    for call in calls:
        calls_of.setdefault(call.episode_id, []).append(call)
    return {
        "tasks": float(len(groups)),
        "tasks_equal": float(equal),
        "tasks_alike": float(
            sum(answers_are_alike(members, calls_of) for members in groups.values())
        ),
        "no_signal": float(not any(call.advantage for call in credited)),
        **_rewards(records, calls),
        **_components(records),
        **_correlations(records, calls),
        **_tool_answers(calls),
        "advantage_bias": _bias([(call.advantage, len(call.logprobs)) for call in credited]),
        "calls_cut_off": float(_cut_off(calls)),
        **_answers(calls),
    }


def lost_facts(calls: Sequence[Call]) -> dict[str, float]:
    """Count the calls of episodes that were aborted while the batch was filled.

    An agent that gets no whole answer often fails, so these may have most of the answers that were
    cut off.
    """
    return {"calls_lost": float(len(calls)), "calls_lost_cut_off": float(_cut_off(calls))}


def _cut_off(calls: Sequence[Call]) -> int:
    return sum(call.finish_reason == "length" for call in calls)


def tag_facts(
    tags: Iterable[str], records: Sequence[EpisodeRecord], calls: Sequence[Sequence[Call]]
) -> dict[str, float]:
    """Compute `TAG_FACTS` by tag, named ``NAME/TAG``; a tag without episodes gets its zero counts.

    :param tags: the tags to include besides those of `records`.
    :param calls: of each of `records`.
    """
    facts: dict[str, float] = {}
    for tag in sorted({*tags, *(record.tag for record in records)}):
        own = [number for number, record in enumerate(records) if record.tag == tag]
        episodes = [records[number] for number in own]
        figures = {
            "tasks": float(len({record.group for record in episodes})),
            "episodes": float(len(episodes)),
        }
        own_calls = [call for number in own for call in calls[number]]
        if own_calls:
            figures |= {"calls": float(len(own_calls)), **_answers(own_calls)}
        if episodes:
            figures |= _rewards(episodes, own_calls)
        facts |= {f"{name}/{tag}": value for name, value in figures.items()}
    return facts


def _rewards(records: Sequence[EpisodeRecord], calls: Sequence[Call]) -> dict[str, float]:
    rewards = _all_earned(records, calls)
    return {"reward_mean": _mean(rewards), "reward_std": _std(rewards)}


def _components(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the mean of each component over the episodes that have it, the most frequent ones."""
    reported = Counter(name for record in records for name in sorted(record.components))
    return {
        f"{COMPONENT_MEAN}/{name}": _mean(
            [record.components[name] for record in records if name in record.components]
        )
        for name, _ in reported.most_common(_COMPONENTS)
    }


def _correlations(records: Sequence[EpisodeRecord], calls: Sequence[Call]) -> dict[str, float]:
    """Return how rewards relate to the success and to the length of episodes.

    A correlation is left out if either side is the same in all episodes.
    """
    rewards = _all_earned(records, calls)
    lengths: Counter[str] = Counter()
    for call in calls:
        lengths[call.episode_id] += len(call.sampled_ids)
    others = {"reward_length_correlation": [float(lengths[r.episode_id]) for r in records]}
    successes = [record.components.get(SUCCESS, math.nan) for record in records]
    if all(0 <= success <= 1 for success in successes):
        others["reward_success_correlation"] = successes
    related = {name: correlation(rewards, values) for name, values in others.items()}
    return {name: value for name, value in related.items() if value is not None}


def _tool_answers(calls: Sequence[Call]) -> dict[str, float]:
    """Count the messages of tools, and how many are errors or have the most frequent text."""
    texts = [
        placed.text.content[:_COMPARED_CHARS]
        for call in calls
        for placed in call.messages
        if placed.text.role == "tool"
    ]
    if not texts:
        return {}
    [(_, most)] = Counter(texts).most_common(1)
    failed = sum(text.lstrip().lower().startswith(_FAILED) for text in texts)
    return {"tool_answers": float(len(texts)), "tool_answers_alike": float(max(most, failed))}


def _all_earned(records: Sequence[EpisodeRecord], calls: Sequence[Call]) -> list[float]:
    agents: dict[str, list[str]] = {}
    for call in calls:
        agents.setdefault(call.episode_id, []).append(call.agent)
    return [_earned(record, agents.get(record.episode_id, [])) for record in records]


def _earned(record: EpisodeRecord, agents: Sequence[str]) -> float:
    """Return the reward of an episode, which may consist of those of its calls and agents.

    :param agents: the agent of each call.
    """
    reward = record.reward or 0.0
    if record.agent_rewards and agents:
        reward = _mean([record.agent_rewards.get(agent, reward) for agent in agents])
    return reward + math.fsum(record.call_rewards.values())


def _answers(calls: Sequence[Call]) -> dict[str, float]:
    sampled = sum(len(call.sampled_ids) for call in calls)
    answers = {
        "calls_malformed": float(sum(MALFORMED_CALLS in call.metadata for call in calls)),
        "tokens_per_call": sampled / len(calls) if calls else 0.0,
    }
    if sampled:
        surprise = -math.fsum(math.fsum(call.logprobs) for call in calls)
        answers["sampled_entropy"] = max(0.0, surprise / sampled)
    return answers


def differ(members: Sequence[EpisodeRecord]) -> bool:
    """Return whether the rewards of a task's episodes give any of them an advantage."""
    return rewards_differ((r.reward or 0.0, r.call_rewards, r.agent_rewards) for r in members)


def answers_are_alike(
    members: Sequence[EpisodeRecord], calls: Mapping[str, Sequence[Call]]
) -> bool:
    """Return whether several episodes of a task have the same answers, token by token.

    :param calls: by episode.
    """
    texts = [
        [tuple(call.sampled_ids) for call in calls.get(record.episode_id, ())] for record in members
    ]
    return len(texts) > 1 and any(texts[0]) and all(text == texts[0] for text in texts[1:])


def _bias(advantages: Sequence[tuple[float, int]]) -> float:
    """Return the sum of the advantages over tokens, divided by the sum of their absolute values.

    :param advantages: the advantage and the number of tokens of each call.
    """
    scale = max((abs(advantage) for advantage, _ in advantages), default=0.0)
    if scale == 0:
        return 0.0
    weighed = [advantage / scale * tokens for advantage, tokens in advantages]
    weight = math.fsum(map(abs, weighed))
    return math.fsum(weighed) / weight if weight else 0.0


def _mean(values: Sequence[float]) -> float:
    return mean(values) if values else 0.0


def _std(values: Sequence[float]) -> float:
    """Return the population standard deviation; scaling keeps the squares from overflowing."""
    scale = max(map(abs, values), default=0.0)
    if scale == 0:
        return 0.0
    scaled = [value / scale for value in values]
    middle = mean(scaled)
    return scale * math.sqrt(mean([(value - middle) ** 2 for value in scaled]))
