"""Findings about a batch: empty batches, and batches without signal, train nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from ajet_core.interfaces import EpisodeRecord
from ajet_core.timeline import Call, TrainBatch
from ajet_server.batches.batch_facts import answers_are_alike, differ
from ajet_server.store.call_metadata import SHAPED_BY

BatchFault = Literal["stale", "empty", "silent", "no_signal", "flat", "sampled_otherwise"]

_SHOWN = 4


def batch_findings(
    records: Sequence[EpisodeRecord],
    calls: Mapping[str, Sequence[Call]],
    batch: TrainBatch,
    *,
    stale: Sequence[EpisodeRecord] = (),
) -> dict[BatchFault, str]:
    """Describe what is wrong with a batch, one sentence for each kind of fault, worst first.

    :param records: the episodes that are trained.
    :param calls: by episode id.
    :param stale: episodes of the batch that are too old to be trained.
    """
    findings: dict[BatchFault, str] = {}
    if stale:
        findings["stale"] = (
            f"{_of(stale, [*records, *stale])} have tokens older than rollout.max_staleness "
            "allows and were left out"
        )
        if not records:
            return findings
    silent = [
        r for r in records if not any(c.finish_reason != "abort" for c in calls[r.episode_id])
    ]
    if records and len(silent) == len(records):
        findings["empty"] = (
            f"none of the batch's {len(records)} episodes made a model call, so there is "
            "nothing to train on: check that the agent uses the base_url and api_key of its "
            "episode"
        )
        return findings
    if silent:
        findings["silent"] = (
            f"{_of(silent, records)} made no model call, which allow_no_calls permits: only their "
            "rewards count, in the baseline"
        )
    if not any(call.advantage for call in batch.calls):
        findings["no_signal"] = _no_signal(records, calls)
    else:
        groups: dict[str, list[EpisodeRecord]] = {}
        for record in records:
            groups.setdefault(record.group, []).append(record)
        flat = [g for g, members in groups.items() if not differ(members)]
        if flat and 2 * len(flat) >= len(groups):
            findings["flat"] = (
                f"all rewards are equal in {len(flat)} of {len(groups)} tasks, which "
                f"therefore contribute nothing to training ({_listed(flat)}): they are too "
                'easy or too hard; set batch.full_by = "differing_tasks" to fill batches '
                "with other tasks"
            )
    answered = [c for r in records for c in calls[r.episode_id] if c.finish_reason != "abort"]
    if otherwise := _sampled_otherwise(answered):
        findings["sampled_otherwise"] = otherwise
    return findings


def sampled_otherwise(call: Call) -> list[str]:
    """Return why a call's tokens were not drawn from the distribution that is trained."""
    if call.temperature == 0:
        return ["temperature 0"]
    if call.sampled_from is not None:
        return []
    shapes = {"top_p": call.top_p < 1, "top_k": call.top_k > 0}
    shaped = call.metadata.get(SHAPED_BY, "").split(",")
    return [*(name for name, used in shapes.items() if used), *filter(None, shaped)]


def _sampled_otherwise(calls: Sequence[Call]) -> str:
    """Describe the tokens that are trained as if they were drawn otherwise, "" without any."""
    causes = Counter[str]()
    tokens = 0
    for call in calls:
        if names := sampled_otherwise(call):
            tokens += len(call.sampled_ids)
            causes.update(dict.fromkeys(names, len(call.sampled_ids)))
    if not tokens:
        return ""
    share = tokens / sum(len(call.sampled_ids) for call in calls)
    part = f"{share:.0%}" if share >= 0.005 else "less than 1%"
    return (
        f"{part} of the sampled tokens were drawn with {', '.join(causes)}, but are trained "
        "as if they were drawn from the whole distribution, which biases the gradient: leave these "
        "settings out of the agent's requests in training, or use the engine and the trainer "
        "'torch', which record and train what tokens were drawn from (but at temperature 0)"
    )


def _no_signal(records: Sequence[EpisodeRecord], calls: Mapping[str, Sequence[Call]]) -> str:
    """Describe why nothing can be learned and, after a colon, what to do."""
    groups: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    rewards = [record.reward or 0.0 for record in records]
    one_reward = len(set(rewards)) == 1
    if all(answers_are_alike(members, calls) for members in groups.values()):
        reward = f" and all {len(rewards)} rewards are {rewards[0]:g}" if one_reward else ""
        return (
            f"within each task all answers are identical{reward}, so nothing can be learned: the "
            "policy has become deterministic, whether or not it has solved the tasks, or the "
            "sampling is greedy: set a temperature above 0 (rollout.sampling, or sampling= of "
            "trainable)"
        )
    if one_reward:
        return (
            f"all {len(rewards)} rewards of the batch are {rewards[0]:g}, so nothing can be "
            "learned from it: check the reward function, or use tasks that are neither all "
            "too easy nor all too hard"
        )
    return (
        "rewards are equal within each task, though answers differ, so every advantage is 0 and "
        "nothing can be learned: check the reward function, or use tasks of another difficulty"
    )


def _of(some: Sequence[EpisodeRecord], all_: Sequence[EpisodeRecord]) -> str:
    return f"{len(some)} of {len(all_)} episodes ({_listed([r.episode_id for r in some])})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
