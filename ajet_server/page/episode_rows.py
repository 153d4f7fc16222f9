"""Lists of episodes: what was attempted, with which reward, and what the model wrote."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from ajet_core.errors import DamagedRecordError
from ajet_core.interfaces import EpisodeQuery, EpisodeRecord
from ajet_core.timeline import Call
from ajet_server.averages import mean
from ajet_server.observe.timeline_view import finite
from ajet_server.page.history import StepHistory
from ajet_server.page.models import Ending, EpisodeOutput, EpisodeRow, EpisodeRows, EpisodesQuery
from ajet_server.page.token_texts import TokenTexts
from ajet_server.security.tenants import shown_group
from ajet_server.store.run_store import RunStore

_ENDING_TOKENS = 60
_ENDING_CHARS = 200
_ENDINGS = 10
_SEQUENCE = 8
_COUNTED_TOKENS = 4096
_SCANNED = 20_000
_COUNTED_EPISODES = 2000
_AT_ONCE = 8


async def episode_rows(
    store: RunStore, history: StepHistory, query: EpisodesQuery, texts: Callable[[], TokenTexts]
) -> EpisodeRows:
    """Return the episodes that a query selects, of the newest 20,000.

    :param texts: loads the tokenizer; called in a thread, and only for `EpisodesQuery.outputs`.
    """
    last = query.skip + query.limit
    selected: list[EpisodeRecord] = []
    whole = True
    async for record in selected_episodes(store, history, query):
        if query.order == "newest" and len(selected) > max(last, _COUNTED_EPISODES):
            whole = False
            break
        selected.append(record)
    ordered: Sequence[EpisodeRecord] = selected
    if query.order != "newest":
        sign = -1.0 if query.order == "highest" else 1.0
        ordered = heapq.nsmallest(last, selected, key=lambda one: _place(one, sign))
    chosen = ordered[query.skip : last]
    total, more = len(selected) if whole else None, len(selected) > last
    if not query.outputs:
        return EpisodeRows(
            episodes=[episode_row(record) for record in chosen], more=more, total=total
        )
    rows = []
    for at in range(0, len(chosen), _AT_ONCE):
        some = chosen[at : at + _AT_ONCE]
        # Others read in between, and only a few histories are in memory.
        calls = await store.calls([record.episode_id for record in some])
        rows += await asyncio.to_thread(_described, some, calls, texts)
    return EpisodeRows(episodes=rows, endings=shared_endings(rows), more=more, total=total)


def _described(
    records: Sequence[EpisodeRecord],
    calls: Mapping[str, Sequence[Call]],
    texts: Callable[[], TokenTexts],
) -> list[EpisodeRow]:
    loaded = texts()
    return [episode_row(one, episode_output(calls[one.episode_id], loaded)) for one in records]


async def selected_episodes(
    store: RunStore, history: StepHistory, query: EpisodesQuery
) -> AsyncIterator[EpisodeRecord]:
    """Yield the episodes that a query selects, of the newest 20,000 or of its step."""
    if query.step is not None:
        for episode_id in await history.episodes_of(query.step):
            with contextlib.suppress(DamagedRecordError):
                record = await store.get_episode(episode_id)
                if record is not None and _matches(record, query):
                    yield record
        return
    scanned = 0
    newest = EpisodeQuery(query.state, query.kind, query.task or None, newest_first=True)
    async for record in store.select(newest):
        if query.cause in ("", record.cause) and query.client in ("", record.client_id):
            yield record
        scanned += 1
        if scanned == _SCANNED:
            return
        if scanned % 500 == 0:
            # Others have their turn, also with a store that never waits.
            await asyncio.sleep(0)


def _matches(record: EpisodeRecord, query: EpisodesQuery) -> bool:
    return (
        query.state in (None, record.state)
        and query.kind in (None, record.kind)
        and query.task in ("", record.task_id)
        and query.cause in ("", record.cause)
        and query.client in ("", record.client_id)
    )


def _place(record: EpisodeRecord, sign: float) -> tuple[bool, float]:
    reward = finite(record.reward)
    return reward is None, 0.0 if reward is None else sign * reward


def episode_row(record: EpisodeRecord, output: EpisodeOutput | None = None) -> EpisodeRow:
    """Return a record as a row of a list."""
    return EpisodeRow(
        episode_id=record.episode_id,
        task_id=record.task_id,
        group=shown_group(record.group),
        kind=record.kind,
        tag=record.tag,
        state=record.state,
        client=record.client_id,
        version=record.claim_version,
        reward=finite(record.reward),
        components=_finite_only(record.components),
        agent_rewards=_finite_only(record.agent_rewards),
        reason=record.reason,
        cause=record.cause,
        claimed_at=record.created_at,
        finished_at=record.finished_at,
        trained=record.batch_id is not None,
        output=output,
    )


def episode_output(calls: Sequence[Call], texts: TokenTexts) -> EpisodeOutput:
    """Return what the model wrote in an episode."""
    ending = texts.text(calls[-1].sampled_ids[-_ENDING_TOKENS:]) if calls else ""
    return EpisodeOutput(
        calls=len(calls),
        tokens=sum(len(call.sampled_ids) for call in calls),
        ending=ending[-_ENDING_CHARS:],
        repeats=_repeats([token for call in calls for token in call.sampled_ids]),
        cut_off=sum(call.finish_reason == "length" for call in calls),
    )


def _repeats(tokens: Sequence[int]) -> float:
    """Return the share of sequences of 8 tokens that occurred before, of the last 4,096 tokens."""
    tokens = tokens[-_COUNTED_TOKENS:]
    sequences = [tuple(tokens[at : at + _SEQUENCE]) for at in range(len(tokens) - _SEQUENCE + 1)]
    return round(1 - len(set(sequences)) / len(sequences), 4) if sequences else 0.0


def shared_endings(rows: Sequence[EpisodeRow]) -> list[Ending]:
    """Return what at least two of the episodes end with, the most frequent first."""
    rewards: dict[str, list[float | None]] = defaultdict(list)
    for row in rows:
        if row.output is not None and row.output.ending.strip():
            rewards[row.output.ending].append(row.reward)
    shared = sorted(
        ((text, values) for text, values in rewards.items() if len(values) > 1),
        key=lambda each: -len(each[1]),
    )
    return [Ending(text=text, episodes=len(v), reward=_mean(v)) for text, v in shared[:_ENDINGS]]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _finite_only(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
