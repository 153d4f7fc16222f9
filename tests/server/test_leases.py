"""Which leases have run out."""

from __future__ import annotations

import asyncio

from ajet_core.interfaces import EpisodeRecord
from ajet_server.episodes.leases import LeaseWatch
from ajet_server.episodes.open_episodes import OpenEpisode, OpenEpisodes
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex


def watch(**leases: float) -> LeaseWatch:
    found = LeaseWatch()
    for episode_id, expires_at in leases.items():
        found.add(expires_at, episode_id)
    return found


def test_leases_run_out_at_their_time() -> None:
    ends = {"a": 1.0, "b": 2.0, "c": 3.0}
    leases = watch(**ends)
    assert leases.expired(0.5, ends.get) == []
    assert leases.expired(2.0, ends.get) == ["a", "b"]


def test_a_renewed_lease_is_looked_at_again_when_it_may_have_run_out() -> None:
    leases = watch(a=1.0)
    assert leases.expired(1.0, {"a": 5.0}.get) == []
    assert leases.next_look() == 5.0
    assert leases.expired(5.0, {"a": 5.0}.get) == ["a"]


def test_an_expired_lease_is_named_until_its_episode_is_over() -> None:
    """Where aborting it failed, it is tried again."""
    leases = watch(a=1.0)
    assert leases.expired(1.0, {"a": 1.0}.get) == ["a"]
    assert leases.expired(1.0, {"a": 1.0}.get) == ["a"]
    assert leases.expired(1.0, lambda _: None) == []
    assert leases.next_look() is None


class Clock:
    """Both clocks of the server; the wall clock began at 1000."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wall_ahead = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.wall_ahead


def opened(
    episodes: OpenEpisodes, created_at: float, episode_id: str = "e", client_id: str = "c"
) -> OpenEpisode:
    """An episode with a lease of 10 seconds, whose client promised a heartbeat a second."""
    record = EpisodeRecord(
        episode_id=episode_id,
        key_hash="",
        task_id="t",
        group="t",
        kind="train",
        tag="",
        client_id=client_id,
        claim_version=0,
        lease_seconds=10,
        heartbeat_seconds=1,
        created_at=created_at,
    )
    episode = episodes.opened(record, Session(episode_id, ConversationIndex(), 0))
    episodes.add(episode)
    return episode


def test_an_episode_is_over_at_its_longest_time_whatever_it_does() -> None:
    clock = Clock()
    episodes = OpenEpisodes(clock, clock.wall, max_seconds=25)
    episode = opened(episodes, created_at=clock.wall())
    for now in (8.0, 16.0, 24.0):
        clock.now = now
        episodes.saw(episode)
        assert episodes.expired() == []
    assert episodes.lease_left(episode) == 1
    clock.now = 25.0
    episodes.saw(episode)
    assert episodes.expired() == [episode]


async def test_calls_that_run_hold_the_lease_and_not_the_longest_time() -> None:
    clock = Clock()
    episodes = OpenEpisodes(clock, clock.wall, max_seconds=25)
    episode = opened(episodes, created_at=clock.wall())
    with episodes.running_call(episode, asyncio.sleep(0)) as call:
        clock.now = 20.0
        assert episodes.expired() == []
        clock.now = 25.0
        assert episodes.expired() == [episode]
        await call


def test_the_longest_time_counts_from_the_claim_and_over_restarts() -> None:
    clock = Clock()
    claimed = clock.wall() - 20
    episodes = OpenEpisodes(clock, clock.wall, max_seconds=25)
    assert opened(episodes, created_at=claimed).ends_at == 5
    # A wall clock that was set back makes no episode longer than a new one.
    assert opened(episodes, created_at=clock.wall() + 3600).ends_at == 25


def silent(episodes: OpenEpisodes) -> set[str]:
    """Ids of those that are silent since the last look."""
    return {episode.record.episode_id for episode in episodes.newly_silent()}


def test_a_client_that_came_back_may_be_silent_for_twice_as_long_from_then_on() -> None:
    """Or the slots of a client on a slow machine would be given away again and again."""
    clock = Clock()
    episodes = OpenEpisodes(clock, clock.wall)
    slow = [opened(episodes, clock.wall(), f"slow-{n}", "slow") for n in range(2)]
    opened(episodes, clock.wall(), "quick", "quick")
    clock.now = 2.9
    assert silent(episodes) == set()
    clock.now = 4.0
    assert silent(episodes) == {"slow-0", "slow-1", "quick"}
    assert [episodes.saw(episode) for episode in slow] == [True, True]
    clock.now = 11.9
    assert silent(episodes) == set()
    clock.now = 12.0
    assert silent(episodes) == {"slow-0", "slow-1"}
    # The other client is as it was.
    opened(episodes, clock.wall(), "another", "quick")
    clock.now = 15.0
    assert silent(episodes) == {"another"}
