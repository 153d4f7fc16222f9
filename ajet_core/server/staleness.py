"""Keeps what is trained within the bounds of `RolloutConfig`: tokens of weights that are too old are context only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ajet_core.protocol import RolloutConfig
from ajet_core.timeline import Call


@dataclass(frozen=True, slots=True)
class Fresh:
    """What of a batch is fresh enough to be trained.

    :param calls: of each episode; one whose first tokens are too old has them in its prompt, one that is too old as a
        whole is missing.
    :param trimmed: ids of the calls that lack their first tokens.
    :param staleness: number of trained tokens by staleness.
    :param dropped: number of sampled tokens that are not trained.
    """

    calls: list[list[Call]]
    trimmed: frozenset[str]
    staleness: Counter[int]
    dropped: int

    def metrics(self) -> dict[str, float]:
        """Numbers for the step's summary, named as `StepSummary` says."""
        return {
            "staleness_mean": _mean(self.staleness),
            "staleness_max": float(max(self.staleness, default=0)),
            "tokens_stale": float(self.dropped),
        }


def keep_fresh(calls: Sequence[Sequence[Call]], version: int, bounds: RolloutConfig) -> Fresh:
    """Leave out what is older than `bounds` allow.

    :param calls: of each episode.
    :param version: of the weights that the batch will be trained on.
    """
    sampled = _ages(calls, version)
    kept = [_younger(made, version, bounds.max_staleness) for made in calls]
    if bounds.max_mean_staleness is not None:
        _bound_mean(kept, version, bounds.max_mean_staleness)
    ages = _ages(kept, version)
    whole = {call.call_id: len(call.sampled_ids) for made in calls for call in made}
    trimmed = {c.call_id for made in kept for c in made if len(c.sampled_ids) < whole[c.call_id]}
    return Fresh(kept, frozenset(trimmed), ages, sampled.total() - ages.total())


def _bound_mean(calls: list[list[Call]], version: int, most: float) -> None:
    """Leave out the oldest tokens, call after call, until their mean age is at most `most`; in place."""
    ages = _ages(calls, version)
    while _mean(ages) > most:
        bound = max(ages) - 1
        for made in calls:
            fresh: list[Call] = []
            for call in made:
                some = [call] if _mean(ages) <= most else _younger([call], version, bound)
                ages = ages - _ages([[call]], version) + _ages([some], version)
                fresh += some
            made[:] = fresh


def _younger(calls: Sequence[Call], version: int, bound: int) -> list[Call]:
    """What is left of `calls` without tokens older than `bound`."""
    fresh: list[Call] = []
    for call in calls:
        old = _first_fresh(call, version, bound)
        if old == 0:
            fresh.append(call)
        elif old < len(call.sampled_ids):
            fresh.append(_without_first(call, old))
    return fresh


def _ages(calls: Sequence[Sequence[Call]], version: int) -> Counter[int]:
    """Number of sampled tokens by staleness."""
    return Counter(
        _age(v, version) for made in calls for call in made for v in call.policy_versions
    )


def _mean(ages: Counter[int]) -> float:
    tokens = ages.total()
    return sum(age * count for age, count in ages.items()) / tokens if tokens else 0.0


def _age(sampled_by: int, version: int) -> int:
    """0 also for what later weights sampled, which were lost in a crash."""
    return max(0, version - sampled_by)


def _first_fresh(call: Call, version: int, bound: int) -> int:
    """Tokens up to the last that is too old: weights get newer while a call is sampled, but for a crash."""
    if not call.policy_versions or version - min(call.policy_versions) <= bound:
        return 0
    old = [i for i, v in enumerate(call.policy_versions) if version - v > bound]
    return old[-1] + 1


def _without_first(call: Call, tokens: int) -> Call:
    """`call` as if its first sampled tokens had been in the prompt."""
    return replace(
        call,
        suffix_ids=call.suffix_ids + call.sampled_ids[:tokens],
        sampled_ids=call.sampled_ids[tokens:],
        logprobs=call.logprobs[tokens:],
        policy_versions=call.policy_versions[tokens:],
        # Its message begins before what is left of it.
        answer=None,
    )
