"""The checks of `recovery.py`: acknowledged ends and the weights' batches against the store."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from recorded import recorded_episodes
from recovery_clients import EPISODES_PER_TASK
from recovery_swarm import Swarm

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import Evaluation, MixtureConfig, RunConfig
from ajet_server.store.store_reader import EpisodeChoice


def journal_lines(directory: Path) -> Iterator[dict[str, object]]:
    """Iterate over the clients' records, without lines that a kill cut off."""
    for path in sorted(directory.glob("client-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def restarts(swarm: Swarm, lines: list[dict[str, object]]) -> dict[str, object]:
    """Return how long restarted clients took while the server was available."""
    took = [
        float(str(line["first_call"])) - began
        for line in lines
        if "first_call" in line
        and (began := float(str(line["started"]))) in swarm.restarted
        and not any(
            gone < float(str(line["first_call"])) and began < back for gone, back in swarm.outages
        )
    ]
    return {
        "client_restarts": len(took),
        "client_restart_p50_s": round(statistics.median(took), 3) if took else None,
        "client_restart_max_s": round(max(took), 3) if took else None,
    }


def mixture(trained: list[Counter[str]], config: MixtureConfig, slots: int) -> dict[str, object]:
    """Return how far batches are from their ratios.

    :param trained: tasks of each batch by tag, in order.
    :param slots: number of tasks in a batch.
    """
    sums: Counter[str] = Counter()
    off, drift = 0, 0.0
    for number, tasks in enumerate(trained, start=1):
        sums += tasks
        ratios = config.ratios.items()
        off += any(abs(tasks[tag] - ratio * slots) >= 1 for tag, ratio in ratios)
        drift = max(drift, *(abs(sums[tag] - ratio * slots * number) for tag, ratio in ratios))
    return {"mixture_off": off, "mixture_drift": round(drift, 3)}


def tasks_by_tag(episodes: list[EpisodeRecord]) -> Counter[str]:
    """Return the number of complete tasks of a batch, by tag."""
    sizes = Counter((episode.tag, episode.group) for episode in episodes)
    return Counter(tag for (tag, _), size in sizes.items() if size >= EPISODES_PER_TASK)


def evaluation(
    ended: dict[str, EpisodeRecord], members: Counter[str], scores: list[Evaluation]
) -> dict[str, object]:
    """Check that evaluation episodes are not trained, and are counted correctly.

    :param members: episodes of all batches.
    :param scores: scores that the server reports.
    """
    found = {i: record for i, record in ended.items() if record.kind == "eval"}
    by_step = Counter(record.claim_version for record in found.values())
    told = Counter({score.step: score.episodes for score in scores})
    return {
        "eval_episodes": len(found),
        "eval_trained": sum(r.batch_id is not None or i in members for i, r in found.items()),
        "eval_miscounted": sum(abs(by_step[step] - told[step]) for step in by_step | told),
    }


def audit(swarm: Swarm, run: RunConfig, scores: list[Evaluation]) -> dict[str, object]:
    """Compare acknowledged ends and the weights' batches with the store."""
    directory = swarm.directory
    run_dir = directory / "run"
    lines = list(journal_lines(directory))
    acknowledged = {str(line["ended"]): line["reward"] for line in lines if "ended" in line}
    noted = sum("ended" in line for line in lines)
    checkpoint = sorted((run_dir / "checkpoints").glob("step-*"))[-1]
    trained: list[tuple[str, list[str]]] = json.loads(
        (checkpoint / "witness.json").read_text(encoding="utf-8")
    )
    saw = [batch_id for batch_id, _ in trained]
    members = Counter(episode for _, episodes in trained for episode in episodes)
    recorded = recorded_episodes(run_dir, EpisodeChoice(state="ended"))
    ended = {episode.record.episode_id: episode.record for episode in recorded}
    lost = [i for i, reward in acknowledged.items() if i not in ended or ended[i].reward != reward]
    batches = {record.batch_id for record in ended.values() if record.batch_id is not None}
    again = sum(number - 1 for number in Counter(saw).values())
    again += sum(number - 1 for number in members.values())
    metrics = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    log = (directory / "gateway.log").read_text(encoding="utf-8", errors="replace")
    made = [tasks_by_tag([ended[e] for e in episodes]) for _, episodes in trained]
    return {
        "acknowledged": len(acknowledged),
        "noted_twice": noted - len(acknowledged),
        "lost": len(lost),
        "trained_twice": again,
        "batches_stored": len(batches),
        "batches_trained": len(saw),
        "batches_untrained": len(batches - set(saw)),
        "staleness_max": max(json.loads(line)["staleness_max"] for line in metrics),
        "tasks_added": sum("more" in line for line in lines),
        "deaths_in_boot": log.count("died during startup"),
        **(mixture(made, run.mixture, run.batch.tasks) if run.mixture is not None else {}),
        **(evaluation(ended, members, scores) if "eval" in swarm.episode_kinds else {}),
        **restarts(swarm, lines),
    }
