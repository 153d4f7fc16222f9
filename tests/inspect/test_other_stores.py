"""The tools read a run from the store it has, whatever store that is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_installation.settings import StoreSettings
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.chosen_store import NOTE, make_store, note_store, store_of_run
from ajet_server.store.sqlite_store import SqliteStore
from tests.embedded.jsonl_hooks import plugins_with_jsonl
from tests.inspect.recorded import Recording, sample_recording

CHOSEN = {
    "another store": StoreSettings(name="jsonl", settings={"file": "mine.jsonl"}),
    "another file": StoreSettings(name="sqlite", settings={"file": "mine.sqlite3"}),
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools find the store ``jsonl``, too."""
    monkeypatch.setattr("ajet_cli.state.plugin_manager", lambda _: plugins_with_jsonl())


def ajet(*args: object) -> str:
    """The output of a command."""
    result = CliRunner().invoke(cli, [*map(str, args)], prog_name="ajet")
    assert result.exit_code == 0, result.output
    return result.stdout


async def write(recording: Recording, store: SampleStore) -> None:
    await store.open()
    await recording.fill(store)
    await store.close()


def everything(run_dir: Path, out: Path) -> list[str]:
    """What the tools say about a run."""
    ajet("export", run_dir, out / "timelines.jsonl")
    ajet("export", run_dir, out / "calls.jsonl", "--rows", "calls", "--state", "any")
    return [
        ajet("inspect", run_dir),
        ajet("inspect", run_dir, "--json"),
        ajet("inspect", run_dir, "--step", 1, "--json"),
        ajet("inspect", run_dir, "--state", "open", "--task", "task-2", "--json"),
        ajet("inspect", run_dir, "ep-aaa"),
        ajet("inspect", run_dir, "ep-aaa1", "--json"),
        (out / "timelines.jsonl").read_text(),
        (out / "calls.jsonl").read_text(),
    ]


@pytest.mark.parametrize("name", CHOSEN)
def test_the_tools_say_the_same_of_the_same_records(
    model_dir: Path, tmp_path: Path, name: str
) -> None:
    usual, other = tmp_path / "usual", tmp_path / "other"
    stores = {
        usual: SqliteStore(SqliteStoreSettings(), WorkerContext(usual)),
        other: make_store(CHOSEN[name], plugins_with_jsonl(), other),
    }
    for run_dir, store in stores.items():
        run_dir.mkdir()
        # Made twice, because its random numbers go on.
        asyncio.run(write(sample_recording(model_dir), store))
    note_store(CHOSEN[name], other)
    said = [
        [text.replace(str(run_dir), "RUN") for text in everything(run_dir, run_dir)]
        for run_dir in stores
    ]
    assert said[0] == said[1]
    assert "ep-aaa1" in said[0][0]


def test_without_a_note_the_settings_say_which_store_it_is(model_dir: Path, tmp_path: Path) -> None:
    chosen = CHOSEN["another store"]
    store = make_store(chosen, plugins_with_jsonl(), tmp_path)
    asyncio.run(write(sample_recording(model_dir), store))
    config = tmp_path / "ajet.toml"
    config.write_text('[store]\nname = "jsonl"\n[store.settings]\nfile = "mine.jsonl"\n')
    found = json.loads(ajet("inspect", tmp_path, "--json", "--config", config))
    assert found["total"] == 4


def test_a_note_has_no_secrets_and_takes_them_from_the_settings(tmp_path: Path) -> None:
    told = {"file": "a.jsonl", "password": "hush", "db": {"api_key": "hush", "host": "x"}}
    chosen = StoreSettings(name="jsonl", settings=told)
    note_store(chosen, tmp_path)
    assert "hush" not in (tmp_path / NOTE).read_text()
    with pytest.raises(Exception, match=r"password|db"):
        # It has no such settings: they were given to it.
        store_of_run(tmp_path, chosen, plugins_with_jsonl())


def test_a_damaged_note_is_one_line(tmp_path: Path) -> None:
    (tmp_path / NOTE).write_text('{"name": 3}')
    result = CliRunner().invoke(cli, ["inspect", str(tmp_path)], prog_name="ajet")
    assert result.exit_code == 2
    assert "does not name the run's store" in result.stderr
