"""Convert records to database rows and back.

Token ids, logprobs, policy versions and `Call.sampled_from` are bytes. Mappings and messages are
ASCII JSON. Texts that agents or clients choose are packed (`pack_text`), so that they have no
characters that a database may refuse: in episodes ``task_id``, ``group_name``, ``tag``, ``reason``
and the columns of `JointRecord`; in calls ``agent`` and ``tools``; in batches ``refused``; in steps
and the run ``config_json``, and the run's ``paused``. Ids, hashes, states and kinds are raw.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Self

import msgpack

from ajet_core.errors import StoreError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeRecord,
    JointRecord,
    RunRecord,
    StepRecord,
)
from ajet_core.timeline import Call, MessageText, PlacedMessage, SampledFrom

__all__ = [
    "BATCH_COLUMNS",
    "CALL_COLUMNS",
    "EPISODE_COLUMNS",
    "OUTCOME_COLUMNS",
    "RUN_COLUMNS",
    "SCORE_COLUMNS",
    "STEP_COLUMNS",
    "UNDECODABLE",
    "LargeCall",
    "Row",
    "batch_from_row",
    "batch_row",
    "call_row",
    "calls_from_rows",
    "episode_from_row",
    "episode_row",
    "is_large",
    "pack_ids",
    "pack_logprobs",
    "pack_runs",
    "pack_sampled_from",
    "pack_text",
    "run_from_row",
    "run_row",
    "score_from_row",
    "score_row",
    "step_from_row",
    "step_row",
    "unpack_array",
    "unpack_ids",
    "unpack_logprobs",
    "unpack_runs",
    "unpack_sampled_from",
    "unpack_text",
]

Row = tuple[Any, ...]

UNDECODABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    struct.error,
    zlib.error,
    msgpack.UnpackException,
)
"""The errors that decoding a damaged row can raise."""

EPISODE_COLUMNS = (
    "episode_id, key_hash, task_id, group_name, kind, tag, client_id, claim_version, "
    "lease_seconds, created_at, state, reward, components, call_rewards, agent_rewards, metadata, "
    "reason, finished_at, batch_id, claim_hash, cause, heartbeat_seconds, final, mixed, rules, "
    # The last four columns form one object.
    "joint_id, joint_role, joint_arbiter, joint_arbiter_run"
)
OUTCOME_COLUMNS = (
    "state, reward, components, call_rewards, agent_rewards, metadata, reason, finished_at, cause, "
    "final, mixed"
)
_EPISODE_JSON_COLUMNS = frozenset({12, 13, 14, 15, 24})
_BOOLEAN_COLUMNS = [EPISODE_COLUMNS.split(", ").index(name) for name in ("final", "mixed")]
_TEXT_COLUMNS = [
    EPISODE_COLUMNS.split(", ").index(name) for name in ("task_id", "group_name", "tag", "reason")
]
_JOINT_FIELDS = attrgetter(*(field.name for field in fields(JointRecord)))
_NO_JOINT = (None,) * len(fields(JointRecord))
CALL_COLUMNS = (
    "episode, call_id, call_index, agent, base, shared, suffix, sampled, logprobs, "
    "policy_versions, temperature, top_p, top_k, finish_reason, created_at, metadata, messages, "
    "answer, tools, sampled_from, compressed"
)
BATCH_COLUMNS = "batch_id, step, created_at, refused, credit"
SCORE_COLUMNS = "call, step, advantage, logprobs"
STEP_COLUMNS = "step, batch_id, metrics, finished_at, config_json"
RUN_COLUMNS = "run_id, config_json, created_at, active, paused, back_to, retrains"

_EMPTY_JSON = "{}"
# In tokens; a transaction with more would delay others by milliseconds.
_LARGE_SUFFIX = 8192
_text_fields = attrgetter(*(field.name for field in fields(MessageText)))


# NUL, which PostgreSQL refuses, halves of surrogate pairs, which UTF-8 cannot encode, and the
# character that starts their replacement.
_UNSAFE = re.compile("[\x00\x1a\ud800-\udfff]")
_REPLACED = re.compile("\x1a([0-9a-f]{4})")


def pack_text(text: str) -> str:
    """Replace the characters of a text that a database may refuse."""
    if text.isascii() and "\0" not in text and "\x1a" not in text:
        return text
    return _UNSAFE.sub(lambda match: f"\x1a{ord(match[0]):04x}", text)


def unpack_text(text: str) -> str:
    """Undo `pack_text`."""
    if "\x1a" not in text:
        return text
    return _REPLACED.sub(lambda match: chr(int(match[1], 16)), text)


def pack_ids(ids: Sequence[int]) -> bytes:
    """Pack [N] token ids as N little-endian uint32.

    :raises StoreError: an id is negative or does not fit into 32 bits.
    """
    try:
        # Half as long as `struct.pack`, which makes a tuple of them first.
        packed = array("I", ids)
    except (OverflowError, TypeError) as error:
        raise StoreError(f"token ids must be integers from 0 to 2**32 - 1: {error}") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(blob: bytes) -> list[int]:
    """Undo `pack_ids`."""
    return unpack_array(blob).tolist()


def unpack_array(blob: bytes) -> array[int]:
    """Undo `pack_ids`; return an array of uint32, which takes a ninth of the memory of a list."""
    ids = array("I")
    ids.frombytes(blob)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Pack [N] logprobs as N little-endian float64.

    Engines compute in float32, but the store must not round. Otherwise the importance ratio of a
    trainer that computes in float64 would differ from 1 for no visible reason. This costs 4 more
    bytes for each sampled token.
    """
    return struct.pack(f"<{len(logprobs)}d", *logprobs)


def unpack_logprobs(blob: bytes) -> list[float]:
    """Undo `pack_logprobs`."""
    return list(struct.unpack(f"<{len(blob) // 8}d", blob))


def pack_runs(values: Sequence[int]) -> bytes:
    """Run-length encode as little-endian int64 pairs (value, count); nearly always one pair."""
    if not values:
        return b""
    if values.count(values[0]) == len(values):
        return struct.pack("<2q", values[0], len(values))
    pairs = [(value, sum(1 for _ in run)) for value, run in itertools.groupby(values)]
    return struct.pack(f"<{2 * len(pairs)}q", *itertools.chain.from_iterable(pairs))


def unpack_runs(blob: bytes) -> list[int]:
    """Undo `pack_runs`."""
    values: list[int] = []
    for value, count in struct.iter_unpack("<2q", blob):
        values.extend([value] * count)
    return values


def pack_sampled_from(sampled_from: SampledFrom) -> bytes:
    """Pack the distributions of a call's tokens, compressed."""
    plain = [
        pack_logprobs(sampled_from.logprobs),
        sampled_from.kept,
        sampled_from.kept_of,
        sampled_from.frequency_penalty,
        sampled_from.presence_penalty,
        sampled_from.logit_bias,
    ]
    return zlib.compress(msgpack.packb(plain), level=1)


def unpack_sampled_from(blob: bytes) -> SampledFrom:
    """Undo `pack_sampled_from`."""
    logprobs, kept, kept_of, frequency, presence, bias = msgpack.unpackb(zlib.decompress(blob))
    added = (frequency, presence, tuple((token_id, value) for token_id, value in bias))
    return SampledFrom(unpack_logprobs(logprobs), kept, kept_of, *added)


def _dump(mapping: Mapping[str, object]) -> str:
    return json.dumps(mapping, separators=(",", ":")) if mapping else _EMPTY_JSON


def _load(text: str) -> Any:
    return {} if text == _EMPTY_JSON else json.loads(text)


@dataclass(frozen=True, slots=True)
class LargeCall:
    """A call with its prompt packed and compressed, which takes too long in a transaction.

    :param suffix: compressed `pack_ids` of `Call.suffix_ids`.
    :param messages: compressed text of `Call.messages`.
    """

    call: Call
    suffix: bytes
    messages: bytes

    @classmethod
    def pack(cls, call: Call) -> Self:
        """Pack a call; about 10 ms for 100,000 tokens, mostly without the interpreter's lock."""
        suffix = zlib.compress(pack_ids(call.suffix_ids), level=1)
        return cls(call, suffix, zlib.compress(_dump_messages(call.messages).encode(), level=1))


def is_large(call: Call) -> bool:
    """Return whether a call should be written as a `LargeCall`."""
    return len(call.suffix_ids) > _LARGE_SUFFIX


def call_row(
    call: Call, episode: int, base: int | None, compressed: LargeCall | None = None
) -> Row:
    """Return the row of `call`, in the order of `CALL_COLUMNS`.

    :param episode: row id of its episode.
    :param base: row id of `Call.base`; None if the store does not have it, which stores the whole
        prompt.
    :param compressed: the call's prompt, if it is compressed.
    """
    whole = base is None and call.base is not None
    if whole:
        compressed = None
    same_tools = base is not None and call.base is not None and call.base.tools == call.tools
    return (
        episode,
        call.call_id,
        call.index,
        pack_text(call.agent),
        base,
        0 if whole else call.shared,
        compressed.suffix
        if compressed
        else pack_ids(call.prompt_ids if whole else call.suffix_ids),
        pack_ids(call.sampled_ids),
        pack_logprobs(call.logprobs),
        pack_runs(call.policy_versions),
        call.temperature,
        call.top_p,
        call.top_k,
        call.finish_reason,
        call.created_at,
        _dump(call.metadata),
        compressed.messages
        if compressed
        else _dump_messages(call.conversation() if whole else call.messages),
        None if call.answer is None else _dump_list(_text_fields(call.answer)),
        None if same_tools else pack_text(call.tools),
        None if call.sampled_from is None else pack_sampled_from(call.sampled_from),
        int(compressed is not None),
    )


def _dump_messages(messages: Sequence[PlacedMessage]) -> str:
    return (
        _dump_list([(m.start, m.end, *_text_fields(m.text)) for m in messages]) if messages else ""
    )


def _load_messages(text: str) -> tuple[PlacedMessage, ...]:
    if not text:
        return ()
    return tuple(
        PlacedMessage(start, end, MessageText(*fields)) for start, end, *fields in json.loads(text)
    )


_dump_list = json.JSONEncoder(separators=(",", ":")).encode


def calls_from_rows(episode_id: str, rows: Iterable[Row]) -> list[Call]:
    """Return the calls of one episode in order of their index, in time linear in their tokens.

    :param rows: (row id, *`CALL_COLUMNS`), in order of row id, so that a base comes before the
        calls that refer to it.
    """
    by_id: dict[int, Call] = {}
    for row_id, _, call_id, index, agent, base_id, shared, *rest in rows:
        suffix, sampled, logprobs, versions, temperature, top_p, top_k, reason, at, *more = rest
        metadata, messages, answer, tools, sampled_from, compressed = more
        if compressed:
            suffix, messages = zlib.decompress(suffix), zlib.decompress(messages).decode()
        base = None if base_id is None else by_id[base_id]
        if tools is None:
            tools = "" if base is None else pack_text(base.tools)
        by_id[row_id] = Call(
            call_id=call_id,
            episode_id=episode_id,
            index=index,
            suffix_ids=unpack_array(suffix),
            sampled_ids=unpack_ids(sampled),
            logprobs=unpack_logprobs(logprobs),
            policy_versions=unpack_runs(versions),
            temperature=temperature,
            finish_reason=reason,
            base=base,
            shared=shared,
            agent=unpack_text(agent),
            created_at=at,
            top_p=top_p,
            top_k=top_k,
            metadata=_load(metadata),
            messages=_load_messages(messages),
            answer=None if answer is None else MessageText(*json.loads(answer)),
            tools=unpack_text(tools),
            sampled_from=None if sampled_from is None else unpack_sampled_from(sampled_from),
        )
    return sorted(by_id.values(), key=lambda call: call.index)


def score_row(score: CallScore, call: int, step: int) -> Row:
    """Return the row of `score`, in the order of `SCORE_COLUMNS`.

    These logprobs are only for display, so float32 is enough.

    :param call: row id of its call.
    """
    blob = struct.pack(f"<{len(score.logprobs)}f", *score.logprobs)
    return (call, step, score.advantage, blob)


def score_from_row(row: Row) -> CallScore:
    """Return the score of a row (call_id, advantage, logprobs)."""
    call_id, advantage, blob = row
    return CallScore(call_id, advantage, list(struct.unpack(f"<{len(blob) // 4}f", blob)))


def episode_row(episode: EpisodeRecord) -> Row:
    """Return the row of `episode`, in the order of `EPISODE_COLUMNS`."""
    return (
        episode.episode_id,
        episode.key_hash,
        pack_text(episode.task_id),
        pack_text(episode.group),
        episode.kind,
        pack_text(episode.tag),
        episode.client_id,
        episode.claim_version,
        episode.lease_seconds,
        episode.created_at,
        episode.state,
        episode.reward,
        _dump(episode.components),
        _dump(episode.call_rewards),
        _dump(episode.agent_rewards),
        _dump(episode.metadata),
        pack_text(episode.reason),
        episode.finished_at,
        # Writing the batch sets the batch id.
        None,
        episode.claim_hash,
        episode.cause,
        episode.heartbeat_seconds,
        int(episode.final),
        int(episode.mixed),
        _dump(episode.rules),
        *(_NO_JOINT if episode.joint is None else map(pack_text, _JOINT_FIELDS(episode.joint))),
    )


def episode_from_row(row: Row) -> EpisodeRecord:
    """Undo `episode_row`."""
    own, joint = row[: -len(_NO_JOINT)], row[-len(_NO_JOINT) :]
    values = [_load(value) if i in _EPISODE_JSON_COLUMNS else value for i, value in enumerate(own)]
    for column in _BOOLEAN_COLUMNS:
        values[column] = bool(values[column])
    for column in _TEXT_COLUMNS:
        values[column] = unpack_text(values[column])
    values.append(None if joint == _NO_JOINT else JointRecord(*map(unpack_text, joint)))
    return EpisodeRecord(*values)


def batch_row(batch: BatchRecord) -> Row:
    """Return the row of `batch`, in the order of `BATCH_COLUMNS`."""
    refused = pack_text(batch.refused)
    return batch.batch_id, batch.step, batch.created_at, refused, _dump(batch.credit)


def batch_from_row(row: Row, episode_ids: list[str], aborted_ids: list[str]) -> BatchRecord:
    """Return the batch of a row of `BATCH_COLUMNS` and the ids of its episodes."""
    batch_id, step, created_at, refused, credit = row
    why = unpack_text(refused)
    return BatchRecord(batch_id, step, episode_ids, created_at, why, aborted_ids, _load(credit))


def step_row(step: StepRecord) -> Row:
    """Return the row of `step`, in the order of `STEP_COLUMNS`."""
    config = pack_text(step.config_json)
    return (step.step, step.batch_id, _dump(step.metrics), step.finished_at, config)


def step_from_row(row: Row) -> StepRecord:
    """Undo `step_row`."""
    step, batch_id, metrics, finished_at, config_json = row
    config = unpack_text(config_json)
    return StepRecord(step, batch_id, _load(metrics), finished_at, config_json=config)


def run_row(run: RunRecord) -> Row:
    """Return the row of `run`, in the order of `RUN_COLUMNS`."""
    return (
        run.run_id,
        pack_text(run.config_json),
        run.created_at,
        int(run.active),
        pack_text(run.paused),
        run.back_to,
        int(run.retrains),
    )


def run_from_row(row: Row) -> RunRecord:
    """Undo `run_row`."""
    run_id, config_json, created_at, active, paused, back_to, retrains = row
    config, why = unpack_text(config_json), unpack_text(paused)
    return RunRecord(run_id, config, created_at, bool(active), why, back_to, bool(retrains))
