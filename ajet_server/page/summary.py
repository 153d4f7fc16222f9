"""Summaries: the numbers of an episode, and totals of forks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ajet_server.observe.forks import ForkSummary
from ajet_server.observe.run_merger import RunMerger
from ajet_server.observe.timeline_view import MergedEpisode, merge_episode
from ajet_server.store.call_metadata import DRIFT_TOKENS
from ajet_server.store.store_reader import StoredEpisode, StoreReader


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One episode. Aborted calls count only in `calls_aborted`, because they are not trained.

    :param step: the training step that consumes it, None if it has no batch.
    :param tokens_raw: number of tokens of all calls as separate samples.
    :param tokens: number of tokens of the tree.
    :param recomputed_tokens: tokens that were computed twice because of forks.
    :param tokens_drifted: sampled tokens that would have changed if answers were tokenized from
        text.
    :param joint_id: id of its joint episode, the same on all servers; None if it is not part of
        one.
    :param role: its role in the joint episode.
    :param reason: the first line of why it was aborted, "" otherwise.
    """

    episode_id: str
    task_id: str
    group: str
    kind: str
    state: str
    step: int | None
    reward: float | None
    calls: int
    calls_aborted: int
    timelines: int
    tokens_raw: int
    tokens: int
    recomputed_tokens: int
    forks: int
    tokens_drifted: int
    joint_id: str | None = None
    role: str | None = None
    reason: str = ""

    @classmethod
    def of(cls, stored: StoredEpisode, merged: MergedEpisode) -> EpisodeSummary:
        """Summarise an episode and its merged calls."""
        record, seen = stored.record, merged.seen
        return cls(
            episode_id=record.episode_id,
            task_id=record.task_id,
            group=record.group,
            kind=record.kind,
            state=record.state,
            step=stored.step,
            reward=record.reward,
            calls=len(seen.calls),
            calls_aborted=len(merged.tree.calls) - len(seen.calls),
            timelines=len(seen.leaves()),
            tokens_raw=seen.tokens_raw,
            tokens=seen.tokens,
            recomputed_tokens=merged.recomputed_tokens,
            forks=len(merged.forks),
            tokens_drifted=sum(int(call.metadata.get(DRIFT_TOKENS, 0)) for call in seen.calls),
            joint_id=record.joint.joint_id if record.joint else None,
            role=record.joint.role if record.joint else None,
            reason=record.reason.partition("\n")[0],
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}


async def summarise(
    reader: StoreReader, episode_ids: Iterable[str], merger: RunMerger
) -> tuple[list[EpisodeSummary], ForkSummary]:
    """Return the summaries of episodes, read one at a time, and totals of their forks."""
    summaries = []
    forks = ForkSummary()
    for episode_id in episode_ids:
        stored = await reader.load(episode_id)
        merged = merge_episode(episode_id, stored.calls, merger)
        forks.add(merged.seen, merged.forks)
        summaries.append(EpisodeSummary.of(stored, merged))
    return summaries, forks
