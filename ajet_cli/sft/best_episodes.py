"""The best episodes of a recorded run, as examples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ajet_cli.sft.conversations import UNKNOWN_LOGPROB
from ajet_core.errors import RequestError
from ajet_core.files import write_whole
from ajet_core.interfaces import EpisodeQuery, EpisodeRecord, SampleStore
from ajet_core.protocol import RunConfig
from ajet_core.timeline import Call
from ajet_server.run.run_setup import stored_config
from ajet_server.store.store_reader import StoreReader


async def config_of(run_dir: Path, store: SampleStore) -> RunConfig:
    """Return the configuration of a run.

    :raises StoreError: the store does not exist or cannot be read.
    :raises RequestError: no run was started in the directory.
    """
    async with StoreReader(store, run_dir) as reader:
        record = await reader.run()
    if record is None:
        raise RequestError(f"{run_dir} has no run: give the run directory of a server")
    return stored_config(record)


@dataclass(frozen=True, slots=True)
class BestChoice:
    """Which episodes of a run are taken.

    :param share: of all ended training episodes, 0 < share <= 1.
    :param top: of each task, so many at most; None means no limit.
    :param least: the lowest reward of an episode that is taken.
    :param note: keeps the ids of those that were chosen: an interrupted training continues with
        them, although the run may have better ones by then.
    """

    share: float
    least: float
    note: Path
    top: int | None = None


async def best_episodes(run_dir: Path, store: SampleStore, choice: BestChoice) -> list[list[Call]]:
    """Return the calls of a run's best training episodes, the newest first among equal rewards.

    :raises StoreError: the store does not exist or cannot be read.
    :raises RequestError: no episode is good enough, or the noted ones are gone.
    """
    async with StoreReader(store, run_dir) as reader:
        run = await reader.run()
        query = EpisodeQuery(kind="train", state="ended", newest_first=True)
        records = [record async for record in store.episodes(query)]
        ids = _noted(choice)
        if ids is None:
            ids = best_of(records, share=choice.share, least=choice.least, top=choice.top)
            write_whole(choice.note, json.dumps([_asked(choice), ids]).encode())
        calls = await store.calls(ids) if ids else {}
    of_run = () if run is None else stored_config(run).rollout.untrained_agents
    untrained = {one.episode_id: one.untrained_agents.union(of_run) for one in records}
    examples = [
        [
            _to_learn(call)
            for call in calls[one]
            if call.finish_reason != "abort" and call.agent not in untrained.get(one, of_run)
        ]
        for one in ids
    ]
    examples = [example for example in examples if example]
    if not examples:
        highest = max((record.reward or 0.0 for record in records), default=None)
        best_reward = "" if highest is None else f"; the highest reward is {highest:g}"
        raise RequestError(
            f"none of the {len(records)} training episodes of {run_dir} can be trained on"
            f"{best_reward}: lower --min-reward or raise --best"
        )
    return examples


def best_of(
    records: Sequence[EpisodeRecord], *, share: float, least: float, top: int | None
) -> list[str]:
    """Return the ids of the episodes with the highest rewards, the highest first.

    :param records: those that come first are taken first among equal rewards.
    :param share: of all records, 0 < share <= 1; at least one.
    :param least: the lowest reward.
    :param top: most episodes of a task; None means no limit.
    """
    ranked = sorted(records, key=lambda record: -(record.reward or 0.0))
    best = ranked[: max(1, round(share * len(ranked)))]
    of_task: Counter[str] = Counter()
    ids = []
    for record in best:
        of_task[record.task_id] += 1
        if (record.reward or 0.0) >= least and (top is None or of_task[record.task_id] <= top):
            ids.append(record.episode_id)
    return ids


def _asked(choice: BestChoice) -> list[float | str]:
    """Return what identifies a choice, as JSON."""
    top = [] if choice.top is None else [str(choice.top)]
    return [choice.share, str(choice.least), *top]


def _noted(choice: BestChoice) -> list[str] | None:
    """Return the episodes that were chosen before, None if there are none."""
    try:
        before, ids = json.loads(choice.note.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise RequestError(f"{choice.note} is damaged: remove {choice.note.parent}") from error
    return list(map(str, ids)) if before == _asked(choice) else None


def _to_learn(call: Call) -> Call:
    """Return a call as text to learn, whatever it was sampled from."""
    size = len(call.sampled_ids)
    return replace(
        call,
        logprobs=[UNKNOWN_LOGPROB] * size,
        policy_versions=[0] * size,
        temperature=1.0,
        sampled_from=None,
    )
