"""The best episodes of a recorded run, as examples."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ajet_cli.sft.conversations import UNKNOWN_LOGPROB
from ajet_core.errors import RequestError
from ajet_core.files import write_whole
from ajet_core.interfaces import EpisodeQuery, SampleStore
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
    :param least: the lowest reward of an episode that is taken.
    :param note: keeps the ids of those that were chosen: an interrupted training continues with
        them, although the run may have better ones by then.
    """

    share: float
    least: float
    note: Path


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
            rewards = [(record.reward or 0.0, record.episode_id) for record in records]
            ranked = sorted(rewards, key=lambda one: -one[0])
            best = ranked[: max(1, round(choice.share * len(ranked)))]
            ids = [episode_id for reward, episode_id in best if reward >= choice.least]
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


def _asked(choice: BestChoice) -> list[float | str]:
    """Return what identifies a choice, as JSON."""
    return [choice.share, str(choice.least)]


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
