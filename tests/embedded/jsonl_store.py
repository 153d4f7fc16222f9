"""A store as another distribution could bring it: a line of JSON for each append."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

from ajet_core.errors import StoreError
from ajet_core.interfaces import (
    ALL_EPISODES,
    BatchRecord,
    CallScore,
    ComponentSettings,
    EpisodeQuery,
    EpisodeRecord,
    JointRecord,
    Record,
    RewindRecord,
    RunRecord,
    SampleStore,
    StepRecord,
    WorkerContext,
)
from ajet_core.timeline import Call, MessageText, PlacedMessage, SampledFrom
from ajet_server.store.file_lock import FileLock

RECORDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (RunRecord, EpisodeRecord, Call, BatchRecord, StepRecord, RewindRecord)
}


class JsonlStoreSettings(ComponentSettings):
    """Settings of the store ``jsonl``."""

    file: str = "records.jsonl"


@dataclass(slots=True)
class Records:
    """What the lines of a file come to."""

    run: RunRecord | None = None
    episodes: dict[str, EpisodeRecord] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    batches: dict[str, BatchRecord] = field(default_factory=dict)
    steps: dict[int, StepRecord] = field(default_factory=dict)

    def copy(self) -> Records:
        """The same records, to be changed apart."""
        return Records(
            self.run, dict(self.episodes), dict(self.calls), dict(self.batches), dict(self.steps)
        )

    def put(self, record: Record) -> None:
        """Apply one record."""
        match record:
            case RunRecord():
                self.run = record
            case EpisodeRecord():
                known = self.episodes.get(record.episode_id)
                if known is not None and record.state == "open":
                    raise StoreError(f"episode {record.episode_id} is there already")
                self.episodes[record.episode_id] = replace(
                    record, batch_id=known.batch_id if known else None
                )
            case Call():
                if record.call_id in self.calls:
                    raise StoreError(f"call {record.call_id} is there already")
                if record.episode_id not in self.episodes:
                    raise StoreError(f"episode {record.episode_id} is not in the store")
                self.calls[record.call_id] = record
            case BatchRecord():
                self._put_batch(record)
            case StepRecord():
                for score in record.scores:
                    if score.call_id not in self.calls:
                        raise StoreError(f"call {score.call_id} is not in the store")
                self.steps[record.step] = record
            case RewindRecord():
                self.steps = {n: step for n, step in self.steps.items() if n <= record.step}

    def _put_batch(self, batch: BatchRecord) -> None:
        taken = {*batch.episode_ids, *batch.aborted_ids}
        for ids, state in ((batch.episode_ids, "ended"), (batch.aborted_ids, "aborted")):
            for episode_id in ids:
                known = self.episodes.get(episode_id)
                if known is None or known.state != state:
                    is_ = "unknown" if known is None else known.state
                    raise StoreError(f"episode {episode_id} is {is_}, not {state}")
        for other in self.batches.values():
            self.batches[other.batch_id] = replace(
                other,
                episode_ids=[i for i in other.episode_ids if i not in taken],
                aborted_ids=[i for i in other.aborted_ids if i not in taken],
            )
        self.batches[batch.batch_id] = batch
        for episode_id, episode in self.episodes.items():
            if episode_id in taken:
                self.episodes[episode_id] = replace(episode, batch_id=batch.batch_id)
            elif episode.batch_id == batch.batch_id:
                self.episodes[episode_id] = replace(episode, batch_id=None)


class JsonlStore(SampleStore[JsonlStoreSettings]):
    """Keeps a small run in one file: an append copies what it may have to undo."""

    def __init__(self, settings: JsonlStoreSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._path: Path = context.run_dir / settings.file
        self._records: Records | None = None
        self._file: TextIO | None = None
        self._lock = FileLock(self._path.with_suffix(".lock"))

    async def open(self, *, read_only: bool = False) -> None:
        if read_only and not self._path.is_file():
            raise StoreError(f"{self._path} does not exist")
        if not read_only:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        records = Records()
        if self._path.is_file():
            data = self._path.read_bytes()
            # The last line was cut off if its writer was killed.
            whole = data[: data.rfind(b"\n") + 1]
            if not read_only and whole != data:
                os.truncate(self._path, len(whole))
            for line in whole.splitlines():
                for plain in json.loads(line):
                    records.put(_from_plain(plain, records.calls))
        self._records = records
        self._file = None if read_only else self._path.open("a")

    async def close(self) -> None:
        self._records = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    async def append(self, *records: Record) -> None:
        if self._file is None:
            raise StoreError(f"{self._path} is not open for writing")
        changed = self._now.copy()
        for record in records:
            changed.put(record)
        self._file.write(json.dumps([_to_plain(r, changed.calls) for r in records]) + "\n")
        self._file.flush()
        self._records = changed

    async def get_run(self) -> RunRecord | None:
        return self._now.run

    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        return self._now.episodes.get(episode_id)

    async def episodes(self, query: EpisodeQuery = ALL_EPISODES) -> AsyncIterator[EpisodeRecord]:
        found = list(self._now.episodes.values())
        for episode in reversed(found) if query.newest_first else found:
            if query.matches(episode):
                yield episode

    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = {episode_id: [] for episode_id in episode_ids}
        for call in self._now.calls.values():
            if call.episode_id in found:
                found[call.episode_id].append(call)
        return {i: sorted(calls, key=lambda call: call.index) for i, calls in found.items()}

    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        now = self._now
        return {
            score.call_id: score
            for _, step in sorted(now.steps.items())
            for score in step.scores
            if now.calls[score.call_id].episode_id == episode_id
        }

    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        found = sorted(self._now.batches.values(), key=lambda batch: batch.step)
        return [b for b in found if b.step > after_step and bool(b.refused) == refused]

    async def steps(self) -> list[StepRecord]:
        return [replace(step, scores=()) for _, step in sorted(self._now.steps.items())]

    @property
    def _now(self) -> Records:
        if self._records is None:
            raise StoreError(f"{self._path} is not open")
        return self._records


def _to_plain(record: Record, known: Mapping[str, Call]) -> dict[str, Any]:
    if not isinstance(record, Call):
        return {"": type(record).__name__, **asdict(record)}
    plain = {f.name: getattr(record, f.name) for f in fields(record)}
    messages: Sequence[PlacedMessage] = record.messages
    if record.base is not None and record.base.call_id in known:
        plain["base"] = record.base.call_id
    else:
        # As a whole: what it shares with a call that is not there would be lost.
        messages = record.conversation()
        plain |= {"base": None, "shared": 0, "suffix_ids": record.prompt_ids}
    plain["suffix_ids"] = list(plain["suffix_ids"])
    plain["messages"] = [asdict(message) for message in messages]
    plain["answer"] = None if record.answer is None else asdict(record.answer)
    if record.sampled_from is not None:
        kept = [one.hex() for one in record.sampled_from.kept]
        plain["sampled_from"] = {**asdict(record.sampled_from), "kept": kept}
    return {"": "Call", **plain}


def _from_plain(plain: dict[str, Any], known: Mapping[str, Call]) -> Any:
    kind = RECORDS[plain.pop("")]
    if kind is EpisodeRecord and plain["joint"] is not None:
        plain["joint"] = JointRecord(**plain["joint"])
    if kind is StepRecord:
        plain["scores"] = [CallScore(**score) for score in plain["scores"]]
    if kind is Call:
        plain["base"] = known[plain["base"]] if plain["base"] is not None else None
        plain["messages"] = tuple(
            PlacedMessage(m["start"], m["end"], MessageText(**m["text"])) for m in plain["messages"]
        )
        plain["answer"] = MessageText(**plain["answer"]) if plain["answer"] else None
        if plain["sampled_from"] is not None:
            plain["sampled_from"]["kept"] = [
                bytes.fromhex(o) for o in plain["sampled_from"]["kept"]
            ]
            bias = tuple((token, added) for token, added in plain["sampled_from"]["logit_bias"])
            plain["sampled_from"] = SampledFrom(**plain["sampled_from"] | {"logit_bias": bias})
    return kind(**plain)
