"""``ajet store copy``: a run moves from one store to another, and goes on there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_core.errors import ConfigError, StoreError
from ajet_core.interfaces import EpisodeRecord, RunRecord, SampleStore, WorkerContext
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.copying import Copied, copy_run
from ajet_server.store.sqlite_store import SqliteStore
from ajet_testing.servers import ServerFactory
from tests.embedded.jsonl_hooks import plugins_with_jsonl
from tests.embedded.jsonl_store import JsonlStore

pytestmark = pytest.mark.processes

TO_JSONL = '[store]\nname = "jsonl"\n'


@pytest.fixture(autouse=True)
def _plugins(servers: ServerFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    servers.plugins = plugins_with_jsonl
    monkeypatch.setattr("ajet_cli.state.plugin_manager", lambda _: plugins_with_jsonl())


async def copy(run_dir: Path, settings: str) -> Result:
    """Run the command with the text of a settings file."""
    file = run_dir.parent / "settings.toml"
    file.write_text(settings)
    arguments = ["store", "copy", str(run_dir), "--config", str(file)]
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments)


async def trained_run(servers: ServerFactory) -> None:
    """A run with two steps, an open episode and an aborted one."""
    async with servers.running() as server:
        await server.roll(checkpoint_every=1)
        for _ in range(2):
            await server.batch()
        open_ = await server.claim("open", kind="eval")
        given_up = await server.claim("given up")
        assert (await server.chat(open_)).status_code == 200
        path = f"/v1/episodes/{given_up['episode_id']}/abort"
        answer = await server.http.post(
            path,
            headers={"authorization": "Bearer client-secret"},
            json={"reason": "\u0000 why", "cause": "error"},
        )
        assert answer.status_code == 200


async def contents(store: SampleStore) -> dict[str, Any]:
    """Everything in a store."""
    await store.open(read_only=True)
    try:
        episodes: list[EpisodeRecord] = [e async for e in store.episodes()]
        ids = [e.episode_id for e in episodes]
        return {
            "run": await store.get_run(),
            "episodes": episodes,
            "calls": await store.calls(ids),
            "scores": {i: await store.scores(i) for i in ids},
            "batches": await store.batches(after_step=0),
            "steps": await store.steps(),
        }
    finally:
        await store.close()


def sqlite(run_dir: Path, **settings: Any) -> SqliteStore:
    return SqliteStore(SqliteStoreSettings(**settings), WorkerContext(run_dir))


async def test_a_run_moves_to_another_store_and_back(servers: ServerFactory) -> None:
    await trained_run(servers)
    run_dir = servers.run_dir
    before = await contents(sqlite(run_dir))
    assert len(before["steps"]) == 2
    assert any(before["scores"].values())
    done = await copy(run_dir, TO_JSONL)
    assert done.exit_code == 0, done.output
    assert "copied 10 episodes with 9 calls, 2 batches and 2 steps" in done.output
    # A server with the new store continues the run.
    async with servers.running(store={"name": "jsonl"}) as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        await server.batch()
        assert [s.step for s in await server.service.store.steps()] == [1, 2, 3]
    back = '[store]\nsettings = {file = "back.sqlite3"}\n'
    done = await copy(run_dir, back)
    assert done.exit_code == 0, done.output
    after = await contents(sqlite(run_dir, file="back.sqlite3"))
    assert [s for s in after["steps"] if s.step <= 2] == before["steps"]
    assert {i: after["calls"][i] for i in before["calls"]} == before["calls"]
    assert {i: after["scores"][i] for i in before["scores"]} == before["scores"]
    # The first store is as it was.
    assert await contents(sqlite(run_dir)) == before


async def test_an_interrupted_copy_is_continued(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trained_run(servers)
    plain, appended = JsonlStore.append, 0

    async def fails_later(self: JsonlStore, *records: Any) -> None:
        nonlocal appended
        appended += 1
        if appended > 5:
            raise StoreError("the new store has no more room")
        await plain(self, *records)

    monkeypatch.setattr(JsonlStore, "append", fails_later)
    done = await copy(servers.run_dir, TO_JSONL)
    assert done.exit_code == 2
    assert "no more room" in done.output
    monkeypatch.setattr(JsonlStore, "append", plain)
    # The run still uses the old store.
    assert '"sqlite"' in (servers.run_dir / "store.json").read_text()
    done = await copy(servers.run_dir, TO_JSONL)
    assert done.exit_code == 0, done.output
    assert '"jsonl"' in (servers.run_dir / "store.json").read_text()


async def test_a_copy_that_differs_is_refused(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trained_run(servers)

    async def no_scores(self: JsonlStore, episode_id: str) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(JsonlStore, "scores", no_scores)
    done = await copy(servers.run_dir, TO_JSONL)
    assert done.exit_code == 2
    assert "differs in the new store" in done.output


async def test_what_cannot_be_copied_is_explained(servers: ServerFactory, tmp_path: Path) -> None:
    async with servers.running() as server:
        done = await copy(servers.run_dir, TO_JSONL)
        assert done.exit_code == 2
        assert "there is no run to copy" in done.output or "another server" in done.output
        await server.roll()
        done = await copy(servers.run_dir, TO_JSONL)
        assert done.exit_code == 2
        assert "another server" in done.output
    same = '[store]\nsettings = {synchronous = "NORMAL"}\n'
    done = await copy(servers.run_dir, same)
    assert "already uses the store 'sqlite' with these settings" in done.output
    assert done.exit_code == 2
    assert (await copy(servers.run_dir, TO_JSONL)).exit_code == 0
    other = sqlite(servers.run_dir, file="other.sqlite3")
    await other.open()
    await other.append(RunRecord("another", "{}", 1.0))
    await other.close()
    done = await copy(servers.run_dir, '[store]\nsettings = {file = "other.sqlite3"}\n')
    assert done.exit_code == 2
    assert "already has run another" in done.output
    (tmp_path / "nothing").mkdir()
    done = await copy(tmp_path / "nothing", TO_JSONL)
    assert done.exit_code == 2
    assert not list((tmp_path / "nothing").iterdir())


async def test_a_server_with_a_store_to_which_nothing_was_copied_is_refused(
    servers: ServerFactory,
) -> None:
    await trained_run(servers)
    note = servers.run_dir / "store.json"
    noted = note.read_bytes()
    for store, named in [
        ({"name": "jsonl"}, "'jsonl', which has no run"),
        ({"settings": {"file": "x.sqlite3"}}, r"'sqlite' \(file: x.sqlite3\), which has no run"),
    ]:
        with pytest.raises(ConfigError, match=rf"in the store 'sqlite'.*{named}.*ajet store copy"):
            async with servers.running(store=store):
                pass
        assert note.read_bytes() == noted
    assert not (servers.run_dir / "records.jsonl").exists()
    assert not (servers.run_dir / "x.sqlite3").exists()
    # Settings that lead to the same records may change.
    async with servers.running(store={"settings": {"synchronous": "FULL"}}) as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
    assert (await copy(servers.run_dir, TO_JSONL)).exit_code == 0
    async with servers.running(store={"name": "jsonl"}) as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        await server.batch()
    # The store that was left has old records.
    with pytest.raises(ConfigError, match=r"'jsonl'.*'sqlite', which has other records"):
        async with servers.running(store={}):
            pass
    # A store that cannot be read is named, too; who knows better removes the note.
    (servers.run_dir / "records.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"'jsonl', which cannot be read \(.*remove the file"):
        async with servers.running(store={}):
            pass
    note.unlink()
    async with servers.running(store={}) as server:
        assert len(await server.service.store.steps()) == 2


async def test_progress_is_reported(servers: ServerFactory) -> None:
    await trained_run(servers)
    source, target = sqlite(servers.run_dir), sqlite(servers.run_dir, file="other.sqlite3")
    await source.open()
    await target.open()
    seen: list[int] = []

    def progress(copied: Copied) -> None:
        seen.append(copied.episodes)

    copied = await copy_run(source, target, progress)
    assert seen == list(range(1, 11))
    assert (copied.batches, copied.steps) == (2, 2)
    await source.close()
    await target.close()
