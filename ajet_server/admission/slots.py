"""Decide how many tasks may be under way, and which tags fill a batch: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from itertools import accumulate

from ajet_core.protocol import BatchConfig, CallRules, MixtureConfig, RolloutConfig
from ajet_server.admission.mixture import Shares

ANY = ""
"""The pool of all episodes if there is no mixture. Tags of a mixture are never empty."""


class Slots:
    """The slots of the batch being filled, and of later batches that start early.

    Slots count tasks, or episodes if a batch is full by episodes.

    A pool is a set of episodes that is counted separately: a tag of the mixture, or `ANY`.

    :param step: the 1-based step that will train the first batch.
    :param credit: as `Shares.credit`.
    :ivar quotas: by pool, the slots that make the batch full.
    :ivar limits: by pool, the most that may be under way, including the batch being filled.
    :ivar concurrency: the most open episodes, as `RolloutConfig.concurrency`.
    :ivar rules: of episodes whose claims have none.
    :ivar untrained_agents: as `RolloutConfig.untrained_agents`.
    :ivar waits: whether a batch waits for late episodes that would be too old for the next one.
    :ivar ratios: of the batch being filled.
    """

    def __init__(
        self,
        batch: BatchConfig,
        rollout: RolloutConfig,
        mixture: MixtureConfig | None,
        *,
        step: int = 1,
        credit: Mapping[str, float] | None = None,
    ) -> None:
        by_episodes = batch.full_by == "episodes"
        self.needed = batch.episodes if by_episodes else batch.tasks
        self._spare = rollout.spare_tasks * (batch.episodes_per_task if by_episodes else 1)
        self._ahead = _slots_ahead(rollout, self.needed)
        self._max_staleness = rollout.max_staleness
        self.concurrency = rollout.concurrency
        self.rules: CallRules = rollout
        self.untrained_agents = frozenset(rollout.untrained_agents)
        self.waits = rollout.late == "carry"
        self.mixture = mixture
        self._next_mixture = mixture
        self.step = step
        self._credit = dict(credit or {})
        self._blocked: frozenset[str] = frozenset()
        self._kept: dict[str, int] = {}
        # How many slots of this batch are ready of tags that have left its mixture, by tag.
        self._inherited: dict[str, int] = {}
        # The step whose ratios replace those of this batch's own step.
        self._as_of: int | None = None
        self._filling = True
        self._training = False
        self.quotas: dict[str, int] = {}
        self.limits: dict[str, int] = {}
        self._later: dict[str, list[int]] = {}
        self._plan()

    @property
    def training(self) -> bool:
        """Whether the previous batch is trained while this one is filled."""
        return self._training

    @property
    def most(self) -> int:
        """The most slots that may be in use at any time."""
        return self.needed + self._spare + self._ahead

    @property
    def exact(self) -> bool:
        """Whether a batch takes only its slots and leaves other ready tasks for the next one."""
        return self.mixture is not None or self._ahead > 0

    @property
    def rolls_on(self) -> bool:
        """Whether rollouts continue while a step is trained."""
        return self._ahead > 0

    @property
    def last_chance(self) -> int:
        """The version whose samples only this batch can still train: they expire after it."""
        return self.step - 1 - self._max_staleness

    def later(self, pool: str) -> list[int]:
        """Return the sums of the pool's slots in the k batches after this one, k = 0 to the bound.

        These batches can train what was claimed with version `last_chance + k`. The result is
        empty if the pool has no slots in them.
        """
        return self._later.get(pool, [])

    @property
    def ratios(self) -> Mapping[str, float]:
        """The ratios by tag; empty without a mixture."""
        return self._ratios(self.step) if self.mixture is not None else {}

    @property
    def blocked(self) -> Set[str]:
        """Tags whose slots are given to the others."""
        return self._blocked

    @property
    def credit(self) -> dict[str, float]:
        """A copy of `Shares.credit`, with which another process can continue."""
        return dict(self._credit)

    def pool(self, tag: str) -> str:
        """Return the pool of an episode with this tag."""
        return tag if self.mixture is not None else ANY

    def refusal(self, tag: str) -> str | None:
        """Return why episodes of a tag are not trained, None if they are."""
        mixture, pool = self._next_mixture, self.pool(tag)
        if mixture is None or tag in mixture.tags:
            return None
        # Tags with slots in this batch are still needed to fill it.
        if self.quotas.get(pool, 0) > 0 and pool not in self._inherited:
            return None
        known = ", ".join(map(repr, sorted(mixture.tags)))
        return (
            f"the mixture has no tag {tag!r}, only {known}: set the argument tag of the episode "
            "to one of these"
        )

    def change(self, mixture: MixtureConfig) -> None:
        """Use another mixture from the next batch on, or from this one before it is filled."""
        self._next_mixture = mixture
        if not self._filling:
            self._adopt()
        self._plan()

    def settle(self) -> None:
        """Freeze the batch's mixture before it is filled: later changes apply to the next batch."""
        self._filling = True

    def begin(self, step: int) -> None:
        """Start filling the batch.

        :param step: the step that will train it; it repeats if a batch was refused.
        """
        self.settle()
        if step != self.step:
            self.step = step
            self._plan()

    def block(self, tags: Set[str], kept: Mapping[str, int]) -> None:
        """Give the slots of `tags` to the other tags for this batch.

        :param kept: by pool, what is ready; for `tags` it stays part of the batch.
        """
        if tags == self._blocked:
            return
        self._blocked = frozenset(tags)
        self._kept = {tag: kept.get(tag, 0) for tag in tags}
        self._plan()

    def hand_over(self, wanted: Set[str], kept: Mapping[str, int]) -> bool:
        """Give the rest of this batch to tags that wait for a later one.

        This is for a batch whose own tags no client rolls out. The batch gets the ratios that were
        set since it started, or those of a later stage of the schedule.

        :param wanted: tags that clients wait for.
        :param kept: as for `block`.
        :return: whether there are such ratios that include a wanted tag.
        """
        mixture = self._next_mixture
        if mixture is None:
            return False
        later = [stage.from_step for stage in mixture.schedule if stage.from_step > self.step]
        for step in (self.step, *later):
            ratios = mixture.at(step)
            if any(ratio > 0 and tag in wanted for tag, ratio in ratios.items()):
                break
        else:
            return False
        inherited = {tag: min(kept.get(tag, 0), n) for tag, n in self.quotas.items()}
        self._adopt()
        self._inherited = {tag: n for tag, n in inherited.items() if n and tag not in ratios}
        self._as_of = step
        self._plan()
        return True

    def next(self) -> None:
        """Start the next batch; in async mode this one is trained meanwhile."""
        if self.mixture is not None:
            without = self._without()
            kept = sum(self._kept_now(without).values())
            self._shares(self.step).commit(self._own - kept, without)
        self._training = self._filling = self._ahead > 0
        self._adopt()
        self.step += 1
        self._inherited, self._as_of = {}, None
        self._plan()

    def _adopt(self) -> None:
        """Adopt the mixture that was set, and unblock all tags."""
        if self._next_mixture != self.mixture:
            self.mixture = self._next_mixture
            # Credit owed under the old ratios is void.
            self._credit = {}
        self._blocked, self._kept = frozenset(), {}

    def trained(self) -> None:
        """Record that the batch in training is trained and no longer under way."""
        self._training = False
        self._plan()

    def _plan(self) -> None:
        ahead = self._ahead - (self.needed if self._training else 0)
        if self.mixture is None:
            self.quotas = {ANY: self.needed}
            self.limits = {ANY: self.needed + self._spare + ahead}
            self._later = {ANY: [k * self.needed for k in range(self._max_staleness + 1)]}
            return
        without = self._without()
        shares, kept = self._shares(self.step), self._kept_now(without)
        left = self._own - sum(kept.values())
        self.quotas = shares.quotas(left, without) | kept | self._inherited
        self.limits = dict(self.quotas)
        if self._spare:
            for tag, slots in shares.quotas(left + self._spare, without).items():
                self.limits[tag] = max(self.limits[tag], slots)
        if ahead < 0:
            batch = shares.quotas(left, without)
            self.limits |= shares.first_of(max(0, left + ahead), batch) | kept | self._inherited
        self._add_later(ahead)
        assert self._next_mixture is not None, "a run with a mixture cannot continue without one"
        for tag in self.limits.keys() - self._next_mixture.tags:
            # No later batch trains these tags.
            self.limits[tag] = min(self.limits[tag], self.quotas.get(tag, 0))
        later = list(self._batches_after(self._max_staleness * self.needed))
        self._later = {
            tag: list(accumulate((quotas.get(tag, 0) for quotas in later), initial=0))
            for tag in self.quotas.keys() & self._next_mixture.tags
        }

    def _add_later(self, slots: int) -> None:
        """Add slots of the batches after this one to the limits."""
        for quotas in self._batches_after(slots):
            for tag, more in quotas.items():
                self.limits[tag] = self.limits.get(tag, 0) + more

    def _batches_after(self, slots: int) -> Iterator[dict[str, int]]:
        """Yield the slots by tag of each later batch, `slots` in all; the last may be partial."""
        without = self._without()
        credit = dict(self._credit)
        step = self.step
        while slots > 0:
            of_this = self._own if step == self.step else self.needed
            self._shares(step, credit).commit(of_this, without)
            step += 1
            shares = self._shares(step, credit)
            batch = shares.quotas(self.needed, without)
            yield batch if slots >= self.needed else shares.first_of(slots, batch)
            slots -= self.needed

    def _shares(self, step: int, credit: dict[str, float] | None = None) -> Shares:
        return Shares(self._ratios(step), self._credit if credit is None else credit)

    def _ratios(self, step: int) -> Mapping[str, float]:
        assert self.mixture is not None, "only a mixture has ratios"
        as_of = self._as_of if step == self.step else None
        return self.mixture.at(step if as_of is None else as_of)

    @property
    def _own(self) -> int:
        """The slots that are divided by the ratios."""
        return self.needed - sum(self._inherited.values())

    def _without(self) -> Set[str]:
        """Return the blocked tags, or none if every tag is blocked: then any tag may fill them."""
        left = [t for t, ratio in self.ratios.items() if ratio > 0 and t not in self._blocked]
        return self._blocked if left else frozenset()

    def _kept_now(self, without: Set[str]) -> dict[str, int]:
        plain = self._shares(self.step).quotas(self._own)
        return {
            tag: min(kept, plain.get(tag, 0))
            for tag, kept in self._kept.items()
            if tag in without and tag in plain
        }


def _slots_ahead(rollout: RolloutConfig, needed: int) -> int:
    """Return how many slots may be in use beyond those of one batch.

    If n slots of other batches are under way while a batch of m is filled, the batch is trained
    with weights that are n / m steps newer on average.
    """
    if rollout.mode == "sync":
        return 0
    mean = rollout.max_mean_staleness
    ahead = rollout.max_staleness if mean is None else min(mean, rollout.max_staleness)
    return max(1, math.floor(needed * ahead))
