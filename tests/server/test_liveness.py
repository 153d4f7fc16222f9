"""After any history, crashes included, clients that roll out new tasks fill further batches."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import AbortCause, BatchConfig, MixtureConfig, RolloutConfig
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.slots import Slots
from tests.support.tiers import examples

TAGS = {"a": "x", "b": "x", "c": "x", "d": "y", "e": "y"}
CAUSES: tuple[AbortCause, ...] = ("error", "cancelled", "lease_expired")

batches = st.builds(
    BatchConfig,
    tasks=st.integers(1, 3),
    episodes_per_task=st.integers(2, 3),
    full_by=st.sampled_from(["tasks", "episodes", "differing_tasks"]),
    max_aborts_per_task=st.integers(1, 2),
)
rollouts = st.one_of(
    st.builds(RolloutConfig, spare_tasks=st.integers(0, 2)),
    st.builds(RolloutConfig, mode=st.just("async"), max_staleness=st.integers(1, 3)),
)
mixtures = st.sampled_from([None, MixtureConfig(ratios={"x": 0.6, "y": 0.4})])


@dataclass
class World:
    """A builder, and what the store would know beside it.

    :ivar over: episodes that are over and in no batch.
    """

    batch: BatchConfig
    rollout: RolloutConfig
    mixture: MixtureConfig | None
    builder: BatchBuilder = field(init=False)
    open: dict[str, EpisodeRecord] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    over: dict[str, EpisodeRecord] = field(default_factory=dict)
    step: int = 1
    training: bool = False
    _now: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.crash()

    def crash(self) -> None:
        """A server that is started again knows what is stored."""
        slots = Slots(self.batch, self.rollout, self.mixture, step=self.step)
        self.builder = BatchBuilder(self.batch, None, slots)
        self.builder.restore([*self.over.values(), *self.open.values()])
        for episode_id in self.silent:
            self.builder.silent(self.open[episode_id])
        self.training = False
        slots.begin(self.step)

    def claim(self, group: str, tag: str) -> EpisodeRecord | None:
        """An episode, if there is a slot for it."""
        tag = tag if self.mixture is not None else ""
        if not self.builder.may_begin(group, tag):
            return None
        now = next(self._now)
        record = EpisodeRecord(
            episode_id=f"e{now}",
            key_hash="",
            task_id=group,
            group=group,
            kind="train",
            tag=tag,
            client_id="c",
            claim_version=self.step - 1,
            lease_seconds=60,
            created_at=now,
        )
        self.open[record.episode_id] = record
        self.builder.opened(record)
        return record

    def end(self, record: EpisodeRecord, reward: float) -> None:
        """An episode ends."""
        self.builder.ended(self._close(replace(record, state="ended", reward=reward)))

    def abort(self, record: EpisodeRecord, cause: AbortCause, *, final: bool) -> None:
        """An episode is aborted."""
        aborted = replace(record, state="aborted", cause=cause, final=final)
        self.builder.aborted(self._close(aborted))

    def _close(self, record: EpisodeRecord) -> EpisodeRecord:
        del self.open[record.episode_id]
        self.silent.discard(record.episode_id)
        record = replace(record, finished_at=next(self._now))
        self.over[record.episode_id] = record
        return record

    def turn_silent(self, record: EpisodeRecord) -> None:
        """A client stops sending heartbeats, or sends them again."""
        if record.episode_id in self.silent:
            self.silent.remove(record.episode_id)
            self.builder.heard(record)
        else:
            self.silent.add(record.episode_id)
            self.builder.silent(record)

    def take(self) -> None:
        """A batch is full, and begins to be trained."""
        taken = self.builder.take()
        for episode_id in [*taken.ended, *taken.aborted]:
            # Each once.
            del self.over[episode_id]
        self.step += 1
        self.training = True
        self.builder.slots.begin(self.step)

    def trained(self) -> None:
        """The batch that was taken is trained."""
        self.training = False
        self.builder.trained()

    def act(self, rng: random.Random) -> None:
        """Something happens."""
        what = rng.random()
        record = rng.choice(list(self.open.values())) if self.open else None
        if what < 0.4 or record is None:
            group = rng.choice(list(TAGS))
            self.claim(group, TAGS[group])
        elif what < 0.65:
            self.end(record, rng.choice([0.0, 1.0]))
        elif what < 0.8:
            self.abort(record, rng.choice(CAUSES), final=rng.random() < 0.5)
        elif what < 0.9:
            self.turn_silent(record)
        elif what < 0.95:
            self.crash()
        elif what < 0.97:
            self.builder.wait_less()
        elif self.training:
            self.trained()
        if self.builder.is_full() and not self.training and rng.random() < 0.7:
            self.take()


@settings(max_examples=examples(60), deadline=None)
@given(batches, rollouts, mixtures, st.integers(0, 150), st.randoms(use_true_random=False))
def test_new_tasks_always_fill_the_batch(
    batch: BatchConfig,
    rollout: RolloutConfig,
    mixture: MixtureConfig | None,
    moves: int,
    rng: random.Random,
) -> None:
    world = World(batch, rollout, mixture)
    for _ in range(moves):
        world.act(rng)
    # The clients of before end what they have begun, or are gone for good.
    for record in list(world.open.values()):
        if rng.random() < 0.5:
            world.end(record, 1.0)
        else:
            world.abort(record, "lease_expired", final=False)
    if world.training:
        world.trained()
    names = (f"new-{number}" for number in itertools.count())
    for _ in range(3):
        # Every pool has slots for the tasks that its part of the batch lacks.
        for _ in range(2 * batch.tasks * batch.episodes_per_task + 2):
            if world.builder.is_full():
                break
            world.builder.wait_less()
            world.builder.wait_less()
            for tag in "xy":
                name = next(names)
                begun = [world.claim(name, tag) for _ in range(batch.episodes_per_task)]
                for reward, record in enumerate(filter(None, begun)):
                    world.end(record, float(reward))
        assert world.builder.is_full(), world.builder.progress()
        world.take()
        world.trained()
