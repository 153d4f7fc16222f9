"""Convert an episode's records to `EpisodeTimelines`.

These are pure functions, used by the route, by ``ajet inspect`` and by its page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ajet_core.interfaces import CallScore, EpisodeRecord
from ajet_core.protocol import (
    EpisodeTimelines,
    TimelineCall,
    TimelineFork,
    TimelineNode,
    TimelineRole,
    TimelineSampling,
)
from ajet_core.timeline import Call, TokenTree
from ajet_server.observe.forks import Fork, find_forks
from ajet_server.observe.roles import node_roles
from ajet_server.observe.run_merger import RunMerger
from ajet_server.security.tenants import shown_group
from ajet_server.store.call_metadata import DRIFT_TOKENS, ECHO_FIELDS, IGNORED

ABORTED = "abort"
"""Finish reason of calls that are recorded but not trained."""


@dataclass(frozen=True, slots=True)
class MergedEpisode:
    """The merged calls of an episode.

    :param merger: name of the run's merger.
    :param tree: the tree of all calls.
    :param seen: the tree of the calls whose answer the agent saw, which training uses.
    :param forks: the forks in `seen`.
    """

    merger: str
    tree: TokenTree
    seen: TokenTree
    forks: list[Fork]

    @property
    def recomputed_tokens(self) -> int:
        """Number of tokens computed again although an earlier call has their messages."""
        return sum(fork.recomputed_tokens for fork in self.forks)


def merge_episode(episode_id: str, calls: Sequence[Call], merger: RunMerger) -> MergedEpisode:
    """Merge the calls of one episode as the run does.

    :raises PluginError: the merger failed.
    """
    merge = merger.merge
    tree = merge(episode_id, calls)
    kept = [call for call in calls if call.finish_reason != ABORTED]
    seen = tree if len(kept) == len(calls) else merge(episode_id, kept)
    return MergedEpisode(merger.name, tree, seen, find_forks(seen))


def episode_timelines(
    record: EpisodeRecord, merged: MergedEpisode, scores: Mapping[str, CallScore]
) -> EpisodeTimelines:
    """Make the protocol's message about an episode.

    :param scores: scores by call id.
    """
    tree, seen = merged.tree, merged.seen
    roles = node_roles(tree)
    return EpisodeTimelines(
        episode_id=record.episode_id,
        task_id=record.task_id,
        group=shown_group(record.group),
        kind=record.kind,
        tag=record.tag,
        state=record.state,
        reward=finite(record.reward),
        agent_rewards={
            clean(agent): reward
            for agent, reward in record.agent_rewards.items()
            if math.isfinite(reward)
        },
        reason=clean(record.reason),
        batch_id=record.batch_id if record.state == "ended" else None,
        merger=merged.merger,
        timelines=len(seen.leaves()),
        tokens_raw=seen.tokens_raw,
        tokens=seen.tokens,
        tokens_altered=seen.tokens_altered,
        nodes=[
            TimelineNode(
                parent=node.parent,
                token_ids=node.token_ids,
                samplings=[TimelineSampling(call=s.call, start=s.start) for s in node.samplings],
                roles=[
                    TimelineRole(
                        start=role.start, end=role.end, role=clean(role.role), name=clean(role.name)
                    )
                    for role in roles[number]
                ],
            )
            for number, node in enumerate(tree.nodes)
        ],
        calls=[
            _call(call, end, scores.get(call.call_id), record.call_rewards.get(call.call_id))
            for call, end in zip(tree.calls, tree.ends, strict=True)
        ],
        forks=[
            TimelineFork(
                call_id=fork.call_id,
                before_call_id=fork.before_call_id,
                kind=fork.kind,
                message=fork.message,
                role=clean(fork.role),
                field=fork.field,
                before=clean(fork.before),
                after=clean(fork.after),
                shared=fork.shared,
                recomputed_tokens=fork.recomputed_tokens,
            )
            for fork in merged.forks
        ],
    )


def clean(text: str) -> str:
    """Return `text` with lone surrogates, which UTF-8 cannot encode, replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def behaviour_logprobs(call: Call) -> list[float]:
    """Return [T] what the trainer's logprobs are compared with.

    That is the distribution that the tokens were sampled from, where it was recorded.
    """
    return call.logprobs if call.sampled_from is None else call.sampled_from.logprobs


def _call(call: Call, end: int, score: CallScore | None, reward: float | None) -> TimelineCall:
    return TimelineCall(
        call_id=call.call_id,
        index=call.index,
        agent=clean(call.agent),
        finish_reason=call.finish_reason,
        temperature=call.temperature,
        end=end,
        parent_call_id=call.parent_call_id,
        prompt_tokens=call.prompt_length,
        logprobs=[finite(value) for value in behaviour_logprobs(call)],
        trainer_logprobs=[] if score is None else [finite(value) for value in score.logprobs],
        policy_versions=call.policy_versions,
        advantage=None if score is None else finite(score.advantage),
        reward=finite(reward),
        created_at=call.created_at,
        drift_tokens=int(call.metadata.get(DRIFT_TOKENS, 0)),
        echo_fields=call.metadata.get(ECHO_FIELDS, ""),
        ignored=call.metadata.get(IGNORED, ""),
    )


def finite(value: float | None) -> float | None:
    """Return `value`, or None if it is not finite, which JSON cannot represent."""
    return value if value is not None and math.isfinite(value) else None
