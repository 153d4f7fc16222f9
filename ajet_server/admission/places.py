"""How many episodes or tasks may be under way, and how many of which tag fill a batch: no I/O, no time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from itertools import accumulate

from ajet_core.protocol import BatchConfig, MixtureConfig, RolloutConfig
from ajet_server.admission.mixture import Shares

ANY = ""
"""The lane of all episodes where there is no mixture. No tag of a mixture is empty."""


class Places:
    """The places of the batch that is being filled, and of those after it that are begun early.

    They are counted in tasks, or in episodes where a batch is full by episodes.

    A lane is what is counted for itself: a tag of the mixture, or `ANY`.

    :param step: the step that will train the first batch, 1-based.
    :param credit: as `Shares.credit`.
    :ivar quotas: by lane, the places that make the batch full.
    :ivar limits: by lane, the most that may be under way, those of the batch that is being filled included.
    :ivar waits: a batch waits for late episodes that would be too old for the next one.
    :ivar ratios: of the batch that is being filled.
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
        self._ahead = _places_ahead(rollout, self.needed)
        self._max_staleness = rollout.max_staleness
        self.waits = rollout.late == "carry"
        self.mixture = mixture
        self._next_mixture = mixture
        self.step = step
        self._credit = dict(credit or {})
        self._blocked: frozenset[str] = frozenset()
        self._kept: dict[str, int] = {}
        # What this batch has of tags that were taken out of its mixture while it was filled.
        self._inherited: dict[str, int] = {}
        # The step whose ratios this batch has instead of its own.
        self._as_of: int | None = None
        self._filling = True
        self._training = False
        self.quotas: dict[str, int] = {}
        self.limits: dict[str, int] = {}
        self._later: dict[str, list[int]] = {}
        self._plan()

    @property
    def training(self) -> bool:
        """Whether the batch before is trained while this one is filled."""
        return self._training

    @property
    def exact(self) -> bool:
        """Whether a batch is made of its places alone: what is ready besides is for the next one."""
        return self.mixture is not None or self._ahead > 0

    @property
    def rolls_on(self) -> bool:
        """Whether rollouts go on while a step is trained."""
        return self._ahead > 0

    @property
    def last_chance(self) -> int:
        """The version whose samples this batch is the last to train: the next one would find them too old."""
        return self.step - 1 - self._max_staleness

    def later(self, lane: str) -> list[int]:
        """The sums of the lane's places in the k batches after this one, for k from 0 to the bound.

        These are the batches that can train what was claimed with version `last_chance + k`. Empty if
        the lane has no part in them.
        """
        return self._later.get(lane, [])

    @property
    def ratios(self) -> Mapping[str, float]:
        """By tag; empty without a mixture."""
        return self._ratios(self.step) if self.mixture is not None else {}

    @property
    def blocked(self) -> Set[str]:
        """Tags whose places have gone to the others."""
        return self._blocked

    @property
    def credit(self) -> dict[str, float]:
        """As `Shares.credit`; with it the next process goes on."""
        return dict(self._credit)

    def lane(self, tag: str) -> str:
        """The lane of an episode."""
        return tag if self.mixture is not None else ANY

    def refusal(self, tag: str) -> str | None:
        """Why episodes of a tag are not trained, if they are not."""
        mixture, lane = self._next_mixture, self.lane(tag)
        if mixture is None or tag in mixture.tags:
            return None
        # This batch could not be filled without the tags that have places in it.
        if self.quotas.get(lane, 0) > 0 and lane not in self._inherited:
            return None
        known = ", ".join(map(repr, sorted(mixture.tags)))
        return f"the mixture has no tag {tag!r}, only {known} (the argument tag of the episode)"

    def change(self, mixture: MixtureConfig) -> None:
        """Have another mixture from the next batch on, which is this one if nobody fills it yet."""
        self._next_mixture = mixture
        if not self._filling:
            self._adopt()
        self._plan()

    def settle(self) -> None:
        """The batch is about to be filled: a change of the mixture does not concern it any more."""
        self._filling = True

    def begin(self, step: int) -> None:
        """The batch is filled from now on.

        :param step: that will train it; that of a batch that was refused is given again.
        """
        self.settle()
        if step != self.step:
            self.step = step
            self._plan()

    def block(self, tags: Set[str], kept: Mapping[str, int]) -> None:
        """Give the places of `tags` to the others for this batch.

        :param kept: by lane, what is ready of them, which is part of the batch all the same.
        """
        if tags == self._blocked:
            return
        self._blocked = frozenset(tags)
        self._kept = {tag: kept.get(tag, 0) for tag in tags}
        self._plan()

    def hand_over(self, wanted: Set[str], kept: Mapping[str, int]) -> bool:
        """Give what is left of this batch to those who wait for a later one, because nobody rolls out its own tags.

        It gets the ratios that were set meanwhile, or those of a later stage of the schedule.

        :param wanted: tags that somebody waits for.
        :param kept: as for `block`.
        :return: whether there are such ratios with a tag that is wanted.
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
        """Go on with the next batch; in async mode this one is trained meanwhile."""
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
        """Have the mixture that was set, and nobody blocked."""
        if self._next_mixture != self.mixture:
            self.mixture = self._next_mixture
            # What rounding owes is owed for ratios that are gone.
            self._credit = {}
        self._blocked, self._kept = frozenset(), {}

    def trained(self) -> None:
        """The batch that was trained is no longer under way."""
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
            for tag, places in shares.quotas(left + self._spare, without).items():
                self.limits[tag] = max(self.limits[tag], places)
        if ahead < 0:
            batch = shares.quotas(left, without)
            self.limits |= shares.first_of(max(0, left + ahead), batch) | kept | self._inherited
        self._add_later(ahead)
        assert self._next_mixture is not None, "a mixture is only ever replaced by another"
        for tag in self.limits.keys() - self._next_mixture.tags:
            # No batch after this one trains it.
            self.limits[tag] = min(self.limits[tag], self.quotas.get(tag, 0))
        later = list(self._batches_after(self._max_staleness * self.needed))
        self._later = {
            tag: list(accumulate((quotas.get(tag, 0) for quotas in later), initial=0))
            for tag in self.quotas.keys() & self._next_mixture.tags
        }

    def _add_later(self, places: int) -> None:
        """Add places of the batches after this one."""
        for quotas in self._batches_after(places):
            for tag, more in quotas.items():
                self.limits[tag] = self.limits.get(tag, 0) + more

    def _batches_after(self, places: int) -> Iterator[dict[str, int]]:
        """By tag, the places of each batch after this one; of the last one as many as are left."""
        without = self._without()
        credit = dict(self._credit)
        step = self.step
        while places > 0:
            of_this = self._own if step == self.step else self.needed
            self._shares(step, credit).commit(of_this, without)
            step += 1
            shares = self._shares(step, credit)
            batch = shares.quotas(self.needed, without)
            yield batch if places >= self.needed else shares.first_of(places, batch)
            places -= self.needed

    def _shares(self, step: int, credit: dict[str, float] | None = None) -> Shares:
        return Shares(self._ratios(step), self._credit if credit is None else credit)

    def _ratios(self, step: int) -> Mapping[str, float]:
        assert self.mixture is not None, "only a mixture has ratios"
        as_of = self._as_of if step == self.step else None
        return self.mixture.at(step if as_of is None else as_of)

    @property
    def _own(self) -> int:
        """Places that the ratios share out."""
        return self.needed - sum(self._inherited.values())

    def _without(self) -> Set[str]:
        """Those blocked, unless there is nobody else: whoever comes first is welcome."""
        left = [t for t, ratio in self.ratios.items() if ratio > 0 and t not in self._blocked]
        return self._blocked if left else frozenset()

    def _kept_now(self, without: Set[str]) -> dict[str, int]:
        plain = self._shares(self.step).quotas(self._own)
        return {
            tag: min(kept, plain.get(tag, 0))
            for tag, kept in self._kept.items()
            if tag in without and tag in plain
        }


def _places_ahead(rollout: RolloutConfig, needed: int) -> int:
    """Places that may be under way beyond those of one batch.

    A batch that is filled while as many others are under way is trained with weights so much newer.
    """
    if rollout.mode == "sync":
        return 0
    mean = rollout.max_mean_staleness
    ahead = rollout.max_staleness if mean is None else min(mean, rollout.max_staleness)
    return max(1, math.floor(needed * ahead))
