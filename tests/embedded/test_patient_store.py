"""What the server does when its store fails: it waits, writes once, and says what is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet_core.errors import StoreError, StoreFullError, StoreUnavailableError
from ajet_core.interfaces import (
    BatchRecord,
    EpisodeQuery,
    Record,
    RunRecord,
    StepRecord,
    WorkerContext,
)
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.patient_store import PatientStore
from ajet_testing.suites.samples import conversation, make_episode
from ajet_testing.suites.store_suite import ended, stored_episodes
from tests.support.clients import Clock
from tests.support.failing_store import FailingStore
from tests.support.tiers import examples


@pytest.fixture
def clock() -> Clock:
    """The clock of the store; a pause advances it."""
    return Clock()


def patient(run_dir: Path, clock: Clock, name: str = "the store 'x'") -> PatientStore:
    """A store that waits at most 30 seconds."""
    disk = FailingStore(SqliteStoreSettings(synchronous="NORMAL"), WorkerContext(run_dir=run_dir))
    return PatientStore(disk, name, retry_seconds=30.0, clock=clock, sleep=clock.async_sleep)


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[PatientStore]:
    """An open store."""
    opened = patient(tmp_path, clock)
    await opened.open()
    yield opened
    await opened.close()


class Outage:
    """Raises an error the first `times` times that it is called."""

    def __init__(self, times: int, error: type[BaseException] = StoreUnavailableError) -> None:
        self.left = times
        self.error = error

    def __call__(self, _: Sequence[Record] = ()) -> None:
        """Fail, or not any more."""
        if self.left:
            self.left -= 1
            raise self.error("the database is away")


async def test_a_write_is_repeated_with_growing_pauses(
    store: PatientStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FailingStore.faults, "before", Outage(7))
    await store.append(make_episode())
    assert clock.sleeps == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert await store.get_episode("episode") == make_episode()
    assert store.trouble is None


async def test_a_read_is_repeated(
    store: PatientStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.append(make_episode())
    monkeypatch.setitem(FailingStore.faults, "read", Outage(2))
    assert await store.get_episode("episode") == make_episode()
    assert clock.sleeps == [0.1, 0.2]


async def test_after_its_time_an_outage_fails_each_operation_at_once(
    store: PatientStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FailingStore.faults, "before", Outage(10**6))
    with pytest.raises(StoreUnavailableError, match="away") as caught:
        await store.append(make_episode())
    assert 28 < clock() <= 30
    assert caught.value.retry_after == 2.0
    trouble = store.trouble
    assert trouble is not None
    assert trouble.code == "store_unavailable"
    assert "the store 'x' cannot be used: the database is away" in trouble.message
    clock.now = 31.0
    slept = len(clock.sleeps)
    with pytest.raises(StoreUnavailableError):
        await store.append(make_episode())
    assert len(clock.sleeps) == slept
    # Reads do not say that it can be written again.
    assert await store.get_run() is None
    assert store.trouble is not None
    monkeypatch.setitem(FailingStore.faults, "before", Outage(0))
    await store.append(make_episode())
    assert store.trouble is None


async def test_a_full_store_fails_at_once(
    store: PatientStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FailingStore.faults, "before", Outage(1, StoreFullError))
    with pytest.raises(StoreFullError):
        await store.append(make_episode())
    assert clock.sleeps == []
    assert store.trouble is not None


async def test_nothing_is_repeated_once_the_server_ends(
    store: PatientStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FailingStore.faults, "before", Outage(1))
    store.hurry()
    with pytest.raises(StoreUnavailableError):
        await store.append(make_episode())
    assert clock.sleeps == []


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(faults=st.lists(st.sampled_from(["before", "after", "read", ""]), max_size=40))
def test_each_record_is_written_once_whatever_fails(
    faults: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Writes that fail before or after they are committed, and reads of what was written."""
    left = iter(faults)

    def fails(where: str) -> None:
        if next(left, "") == where:
            raise StoreUnavailableError("away")

    async def go() -> None:
        clock = Clock()
        store = patient(tmp_path_factory.mktemp("run"), clock)
        # All faults last less than the time after which it gives up.
        store._retry_seconds = 1e9
        await store.open()
        calls = conversation(3)
        batch = BatchRecord("batch", 1, ["episode"], 2.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(FailingStore.faults, "before", lambda _: fails("before"))
            patch.setitem(FailingStore.faults, "after", lambda _: fails("after"))
            patch.setitem(FailingStore.faults, "read", lambda: fails("read"))
            await store.append(RunRecord("run", "{}", 1.0))
            await store.append(make_episode())
            await store.append(calls[0])
            await asyncio.gather(*(store.append(call) for call in calls[1:]))
            await store.append(ended("episode"))
            await store.append(batch)
            await store.append(StepRecord(1, "batch", {}, 3.0))
        assert await store.calls(["episode"]) == {"episode": calls}
        assert (await store.call_totals()).calls == 3
        assert [e.state for e in await stored_episodes(store)] == ["ended"]
        assert await store.batches(after_step=0) == [batch]
        assert len(await store.steps()) == 1
        await store.close()

    asyncio.run(go())


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
async def test_an_error_of_the_plugin_names_the_store(
    store: PatientStore,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(FailingStore.faults, "before", Outage(2, error))
    for _ in range(2):
        with pytest.raises(StoreError, match="the store 'x' failed in append of EpisodeRecord"):
            await store.append(make_episode())
    # The cause is logged once.
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.exc_info is not None


async def test_an_operation_that_hangs_is_reported(
    store: PatientStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def hang(self: FailingStore, *_: Record) -> None:
        asked.set()
        await answer.wait()

    monkeypatch.setattr(FailingStore, "append", hang)
    writing = asyncio.create_task(store.append(make_episode()))
    await asked.wait()
    assert store.trouble is None
    clock.now += 41.0
    trouble = store.trouble
    assert trouble is not None
    assert trouble.code == "store_slow"
    assert "has not answered append of EpisodeRecord for 41 s" in trouble.message
    answer.set()
    await writing
    assert store.trouble is None


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    failing=st.lists(st.integers(0, 6), max_size=8),
    newest_first=st.booleans(),
    ended_at=st.integers(0, 6),
)
def test_an_iteration_continues_after_the_last_episode_whatever_fails(
    failing: list[int],
    newest_first: bool,
    ended_at: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each attempt fails after as many episodes as `failing` says, until the last one."""
    fail_at = iter(failing)
    plain = FailingStore.episodes

    async def episodes(self: FailingStore, *args: object) -> AsyncIterator[object]:
        at, number = next(fail_at, None), 0
        async for episode in plain(self, *args):  # type: ignore[arg-type]
            if number == at:
                raise StoreUnavailableError("away")
            number += 1
            yield episode
        if number == at:
            raise StoreUnavailableError("away")

    async def go() -> None:
        store = patient(tmp_path_factory.mktemp("run"), Clock())
        await store.open()
        names = list("abcdef")
        await store.append(*map(make_episode, names))
        seen = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FailingStore, "episodes", episodes)
            query = EpisodeQuery(state="open", newest_first=newest_first)
            async for episode in store.episodes(query):
                seen.append(episode.episode_id)
                if len(seen) == ended_at:
                    # An episode that was read leaves the filter.
                    await store.append(ended(seen[-1]))
        assert seen == (names[::-1] if newest_first else names)
        await store.close()

    asyncio.run(go())


async def test_an_iteration_fails_after_a_long_outage(
    store: PatientStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.append(make_episode("a"), make_episode("b"))
    plain = FailingStore.episodes

    async def episodes(self: FailingStore, *args: object) -> AsyncIterator[object]:
        async for episode in plain(self, *args):  # type: ignore[arg-type]
            yield episode
            raise StoreUnavailableError("away")

    monkeypatch.setattr(FailingStore, "episodes", episodes)
    seen = []

    async def read() -> None:
        async for episode in store.episodes():
            seen.append(episode.episode_id)

    with pytest.raises(StoreUnavailableError):
        await read()
    assert seen == ["a"]
    assert 28 < clock() <= 30
