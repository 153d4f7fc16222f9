"""Samples as rows for other tools: each sampled token is trained in exactly one row.

Calls whose client disconnected (finish reason ``abort``) and calls of untrained agents are omitted,
as in training.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from ajet_core.timeline import Call, TrainSegment, lay_out
from ajet_server.observe.run_merger import RunMerger
from ajet_server.observe.timeline_view import behaviour_logprobs, clean, merge_episode
from ajet_server.page.token_texts import TokenTexts
from ajet_server.store.store_reader import StoredEpisode

Kind = Literal["text", "int", "float", "texts", "floats", "ids", "ints", "mask"]
Row = dict[str, Any]
RowType = dict[str, Kind]
"""Columns and their types; all but lists may be null."""

RowsOf = Literal["timelines", "calls"]

_EPISODE: RowType = {
    "episode_id": "text",
    "task_id": "text",
    "group": "text",
    "kind": "text",
    "tag": "text",
    "state": "text",
    "step": "int",
    "reward": "float",
}
_TIMELINE: RowType = {
    "agents": "texts",
    "call_ids": "texts",
    "call_rewards": "floats",
    "temperatures": "floats",
    "token_ids": "ids",
    "loss_mask": "mask",
    "call": "ints",
    "logprobs": "floats",
    "trainer_logprobs": "floats",
    "advantages": "floats",
    "policy_versions": "ints",
}
_CALL: RowType = {
    "agent": "text",
    "call_id": "text",
    "index": "int",
    "call_reward": "float",
    "finish_reason": "text",
    "temperature": "float",
    "top_p": "float",
    "top_k": "int",
    "prompt_ids": "ids",
    "sampled_ids": "ids",
    "logprobs": "floats",
    "trainer_logprobs": "floats",
    "advantage": "float",
    "policy_versions": "ints",
}
_TIMELINE_TEXT: RowType = {"text": "text"}
_CALL_TEXT: RowType = {"prompt_text": "text", "sampled_text": "text"}


def row_type(of: RowsOf, *, text: bool) -> RowType:
    """Return the columns of a kind of rows."""
    if of == "calls":
        return {**_EPISODE, **_CALL, **(_CALL_TEXT if text else {})}
    return {**_EPISODE, **_TIMELINE, **(_TIMELINE_TEXT if text else {})}


def rows(
    stored: StoredEpisode,
    of: RowsOf,
    merger: RunMerger,
    texts: TokenTexts | None,
    untrained_agents: Collection[str] = (),
) -> Iterator[Row]:
    """Yield the rows of one episode.

    :param texts: if given, adds the text of the tokens.
    :param untrained_agents: agents whose calls are omitted, in addition to those of the episode.
    """
    untrained = stored.record.untrained_agents.union(untrained_agents)
    trained = [call for call in stored.calls if call.agent not in untrained]
    merged = merge_episode(stored.record.episode_id, trained, merger)
    if of == "calls":
        for call in merged.seen.calls:
            yield _call_row(stored, call, texts)
        return
    for unit in lay_out("linear", [merged.seen], [0]):
        (segment,) = unit.segments
        yield _timeline_row(stored, merged.seen.calls, segment, texts)


def _timeline_row(
    stored: StoredEpisode, calls: Sequence[Call], segment: TrainSegment, texts: TokenTexts | None
) -> Row:
    size = len(segment.token_ids)
    used = sorted({span.call for span in segment.spans})
    place = {number: position for position, number in enumerate(used)}
    mask = [0] * size
    per_token: dict[str, list[Any]] = {
        name: [None] * size
        for name in ("call", "logprobs", "trainer_logprobs", "advantages", "policy_versions")
    }
    for span in segment.spans:
        call = calls[span.call]
        score = stored.scores.get(call.call_id)
        trainer = score.logprobs if score is not None else []
        at, of = (
            slice(span.offset, span.offset + span.length),
            slice(span.start, span.start + span.length),
        )
        mask[at] = [1] * span.length
        per_token["call"][at] = [place[span.call]] * span.length
        per_token["logprobs"][at] = _finite(behaviour_logprobs(call)[of])
        per_token["policy_versions"][at] = call.policy_versions[of]
        if trainer:
            per_token["trainer_logprobs"][at] = _finite(trainer[of])
        if score is not None:
            per_token["advantages"][at] = _finite([score.advantage]) * span.length
    row: Row = {
        **_episode_row(stored),
        "agents": [clean(calls[number].agent) for number in used],
        "call_ids": [calls[number].call_id for number in used],
        "call_rewards": [stored.record.call_rewards.get(calls[number].call_id) for number in used],
        "temperatures": [calls[number].temperature for number in used],
        "token_ids": segment.token_ids,
        "loss_mask": mask,
        **per_token,
    }
    if texts is not None:
        row["text"] = texts.text(segment.token_ids)
    return row


def _call_row(stored: StoredEpisode, call: Call, texts: TokenTexts | None) -> Row:
    score = stored.scores.get(call.call_id)
    prompt = call.prompt_ids
    row: Row = {
        **_episode_row(stored),
        "agent": clean(call.agent),
        "call_id": call.call_id,
        "index": call.index,
        "call_reward": stored.record.call_rewards.get(call.call_id),
        "finish_reason": call.finish_reason,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "top_k": call.top_k,
        "prompt_ids": prompt,
        "sampled_ids": call.sampled_ids,
        "logprobs": _finite(behaviour_logprobs(call)),
        "trainer_logprobs": _finite(score.logprobs) if score is not None else [],
        "advantage": _finite([score.advantage])[0] if score is not None else None,
        "policy_versions": call.policy_versions,
    }
    if texts is not None:
        row["prompt_text"] = texts.text(prompt)
        row["sampled_text"] = texts.text(call.sampled_ids)
    return row


def _episode_row(stored: StoredEpisode) -> Row:
    record = stored.record
    return {
        "episode_id": record.episode_id,
        "task_id": clean(record.task_id),
        "group": clean(record.group),
        "kind": record.kind,
        "tag": clean(record.tag),
        "state": record.state,
        "step": stored.step,
        "reward": record.reward,
    }


def _finite(values: Sequence[float]) -> list[float | None]:
    """Replace non-finite values, which JSON cannot represent, by None."""
    return [value if math.isfinite(value) else None for value in values]
