"""Turn the records of a batch into training data. Pure functions: safe in any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ajet_core.interfaces import AdvantageEstimator, EpisodeRecord, Merger, TrainerInfo
from ajet_core.protocol import RunConfig
from ajet_core.timeline import (
    LAYOUTS,
    LINEAR_LAYOUTS,
    Call,
    Layout,
    TokenTree,
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainTree,
    balanced,
    lay_out,
)
from ajet_server.batches.batch_facts import batch_facts, tag_facts
from ajet_server.batches.batch_findings import BatchFault, batch_findings, sampled_otherwise
from ajet_server.batches.limits import limit_timelines
from ajet_server.batches.staleness import keep_fresh
from ajet_server.observe.forks import ForkSummary, find_forks
from ajet_server.store.call_metadata import DRIFT_TOKENS, ECHO_FIELDS
from ajet_training.minibatches import deals_groups
from ajet_training.planner import LayoutPlan, choose_plan


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A batch ready to train, and statistics of its source.

    :param calls_made: the number of the batch's calls by finish reason.
    :param plan: the chosen layout and the costs it was compared with.
    :param findings: what is wrong with the batch, by kind.
    :param client_of: [len(batch.episodes)] the client of each episode.
    :param clients: the statistics of each client's part of the batch, by client id.
    """

    batch: TrainBatch
    plan: LayoutPlan
    forks: ForkSummary
    calls_made: Counter[str]
    counts: dict[str, float] = field(default_factory=dict)
    findings: dict[BatchFault, str] = field(default_factory=dict)
    client_of: list[str] = field(default_factory=list)
    clients: dict[str, dict[str, float]] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Return numbers for the step's summary, with the names of ``docs/metrics.md``."""
        chosen = self.plan.costs[self.plan.chosen]
        predicted = {"plan_seconds": chosen.seconds} if chosen.seconds is not None else {}
        return {
            "tokens_raw": float(self.batch.tokens_raw),
            "tokens_planned": float(chosen.tokens),
            "tokens_recomputed": float(self.forks.recomputed_tokens.total()),
            "forks": float(self.forks.forks.total()),
            "episodes": float(len(self.batch.episodes)),
            "calls": float(self.calls_made.total()),
            "calls_aborted": float(self.calls_made["abort"]),
            **predicted,
            **self.counts,
        }


@dataclass(frozen=True, slots=True)
class _LimitedEpisode:
    """An episode's calls within the limits.

    :param tree: of the calls that are merged.
    :param alone: a tree for each call that is a separate sample.
    """

    tree: TokenTree
    alone: list[TokenTree]

    @property
    def calls(self) -> list[Call]:
        return [call for tree in (self.tree, *self.alone) for call in tree.calls]


def training_data(
    batch_id: str,
    step: int,
    records: Sequence[EpisodeRecord],
    calls: Mapping[str, Sequence[Call]],
    *,
    config: RunConfig,
    merger: Merger,
    estimator: AdvantageEstimator,
    trainer: TrainerInfo,
) -> TrainingData:
    """Merge, limit, credit and lay out the calls of a batch.

    Episodes that are too old are also left out of the baseline of their task. Otherwise the
    baseline would not fit what is trained, and the advantages of a task would not sum to 0.

    :param calls: by episode id.
    """
    # If its client disconnected, no agent saw the response: the reward does not apply to the call.
    untrained = frozenset(config.rollout.untrained_agents)
    known = {
        r.episode_id: [
            c
            for c in calls[r.episode_id]
            if c.finish_reason != "abort" and c.agent not in untrained | r.untrained_agents
        ]
        for r in records
    }
    fresh = keep_fresh(records, known, step - 1, config.rollout.max_staleness)
    seen = [known[record.episode_id] for record in fresh.episodes]
    episodes = [_train_episode(record) for record in fresh.episodes]
    algorithm = config.algorithm
    credit = estimator.estimate(episodes, seen)
    advantages = {
        call.call_id: advantage
        for its_calls, given in zip(seen, credit, strict=True)
        for call, advantage in zip(its_calls, given, strict=True)
    }
    forks = ForkSummary()
    counts: Counter[str] = Counter()
    merged = []
    for record, its_calls in zip(fresh.episodes, seen, strict=True):
        tree = merger.merge(record.episode_id, its_calls)
        forks.add(tree, find_forks(tree))
        merged.append(_limited(tree, config, merger, counts))
        _count(counts, tree)
    train_calls = [
        TrainCall.of(call, number, advantages[call.call_id])
        for number, episode in enumerate(merged)
        for call in episode.calls
    ]
    credited = train_calls
    if config.importance == "truncated":
        train_calls = balanced(train_calls, episodes, algorithm.aggregation)
    plan = _plan(episodes, merged, train_calls, config, trainer)
    batch = TrainBatch(
        batch_id=batch_id,
        step=step,
        episodes=episodes,
        calls=train_calls,
        trees=plan.trees,
        tokens_raw=sum(call.length for its_calls in seen for call in its_calls),
    )
    reasons = Counter(c.finish_reason for r in records for c in calls[r.episode_id])
    findings = batch_findings(fresh.episodes, known, batch, stale=fresh.stale)
    # The present mixture may differ from the one with which the batch was made.
    tags = config.mixture.at(step) if config.mixture is not None else None
    client_of = [record.client_id for record in fresh.episodes]
    of_clients: dict[str, list[int]] = {}
    for number, client in enumerate(client_of):
        of_clients.setdefault(client, []).append(number)
    figures = {
        **{k: float(v) for k, v in counts.items()},
        **fresh.metrics(),
        "tokens_sampled_otherwise": float(
            sum(len(c.sampled_ids) for of_tree in seen for c in of_tree if sampled_otherwise(c))
        ),
        "tokens_sampled": float(fresh.stale_tokens + fresh.staleness.total()),
        **_facts(range(len(seen)), fresh.episodes, seen, credited, tags),
    }
    clients = {
        client: {
            **_facts(own, fresh.episodes, seen, credited, tags),
            "calls": float(sum(len(seen[number]) for number in own)),
        }
        for client, own in of_clients.items()
    }
    return TrainingData(batch, plan, forks, reasons, figures, findings, client_of, clients)


def _facts(
    own: Sequence[int],
    records: Sequence[EpisodeRecord],
    seen: Sequence[Sequence[Call]],
    credited: Sequence[TrainCall],
    tags: Iterable[str] | None,
) -> dict[str, float]:
    """Compute the statistics of some episodes of a batch, also by tag.

    :param own: the indices of the episodes.
    :param tags: of the mixture; None without one.
    """
    some = [records[number] for number in own]
    own_calls = [seen[number] for number in own]
    chosen = set(own)
    trained = [call for call in credited if call.episode in chosen]
    facts = batch_facts(some, [call for calls in own_calls for call in calls], trained)
    return facts if tags is None else {**facts, **tag_facts(tags, some, own_calls)}


def _train_episode(record: EpisodeRecord) -> TrainEpisode:
    return TrainEpisode(
        record.episode_id,
        record.group,
        record.reward if record.reward is not None else 0.0,
        record.tag,
        dict(record.call_rewards),
        dict(record.agent_rewards),
    )


def _limited(
    tree: TokenTree, config: RunConfig, merger: Merger, counts: Counter[str]
) -> _LimitedEpisode:
    """Apply `TimelineConfig` to the tree of an episode, and count what is left out."""
    timelines = config.timelines
    limited = limit_timelines(
        tree,
        max_timelines=timelines.max_timelines,
        max_tokens=timelines.max_tokens,
        over_long=timelines.over_long,
    )
    dropped = [tree.calls[i] for i in limited.dropped]
    counts["calls_dropped"] += len(dropped)
    counts["tokens_dropped"] += sum(len(call.sampled_ids) for call in dropped)
    counts["calls_alone"] += len(limited.alone)
    if not dropped and not limited.alone:
        return _LimitedEpisode(tree, [])

    def merge(indices: Sequence[int]) -> TokenTree:
        return merger.merge(tree.episode_id, [tree.calls[i] for i in indices])

    return _LimitedEpisode(merge(limited.together), [merge([index]) for index in limited.alone])


def _count(counts: Counter[str], tree: TokenTree) -> None:
    counts["tokens_merged"] += tree.tokens
    counts["tokens_altered"] += tree.tokens_altered
    counts["timelines"] += len(tree.leaves())
    for call in tree.calls:
        counts["calls_drifted"] += DRIFT_TOKENS in call.metadata
        counts["tokens_drifted"] += int(call.metadata.get(DRIFT_TOKENS, 0))
        counts["calls_echoed_otherwise"] += ECHO_FIELDS in call.metadata


def _plan(
    episodes: Sequence[TrainEpisode],
    merged: Sequence[_LimitedEpisode],
    calls: Sequence[TrainCall],
    config: RunConfig,
    trainer: TrainerInfo,
) -> LayoutPlan:
    """Lay out all trees in each way that the trainer supports, and choose the cheapest."""
    # With a KL or entropy term every token has a loss, otherwise only those with an advantage.
    algorithm = config.algorithm
    everything = algorithm.kl_coef > 0 or algorithm.entropy_coef > 0
    trains = [everything or call.advantage != 0 for call in calls]
    first_calls: list[int] = []
    total = 0
    for episode in merged:
        first_calls.append(total)
        total += len(episode.calls)
    groups: dict[str, list[int]] = {}
    for number, train_episode in enumerate(episodes):
        groups.setdefault(train_episode.group, []).append(number)
    options: dict[str, list[list[TrainTree]]] = {
        layout: [
            _lay_out_group(layout, [merged[i] for i in members], [first_calls[i] for i in members])
            for members in groups.values()
        ]
        for layout in _layouts(episodes, config, trainer)
    }
    return choose_plan(options, trainer.costs, trainer.token_budget, trains, divide=trainer.trees)


def _lay_out_group(
    layout: Layout, episodes: Sequence[_LimitedEpisode], first_calls: Sequence[int]
) -> list[TrainTree]:
    units = lay_out(layout, [episode.tree for episode in episodes], first_calls)
    for episode, first in zip(episodes, first_calls, strict=True):
        first_alone = first + len(episode.tree.calls)
        numbers = range(first_alone, first_alone + len(episode.alone))
        units += lay_out("separate", episode.alone, numbers)
    return units


def _layouts(
    episodes: Sequence[TrainEpisode], config: RunConfig, trainer: TrainerInfo
) -> list[Layout]:
    """Return the layouts to compare: those that the run allows and the trainer supports."""
    wanted = config.timelines.layout
    layouts = list(LAYOUTS) if wanted == "auto" else [wanted]
    if not trainer.trees:
        layouts = [layout for layout in layouts if layout in LINEAR_LAYOUTS]
    if not deals_groups(episodes, config.algorithm.minibatches):
        # Episodes of a group are in different minibatches, so they cannot share a tree.
        layouts = [layout for layout in layouts if layout != "group_tree"]
    return layouts or ["tree" if trainer.trees else "linear"]
