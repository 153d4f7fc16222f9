"""``ajet replay`` on the records of a real run."""

from __future__ import annotations

import asyncio
import io
import json
import random
import shutil
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from test_exact_run import STEPS, TASKS, batch, start, until_step

from ajet_cli.main import cli
from ajet_testing.real_trainer import servers_with
from ajet_testing.servers import CONTROL

pytestmark = pytest.mark.usefixtures("worker_tasks")

EPISODES = 2 * len(TASKS)


@pytest.fixture(scope="module")
def run_dir(worker_tasks: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 3 steps, with checkpoints after steps 2 and 3."""
    directory = tmp_path_factory.mktemp("recorded")

    async def record() -> None:
        servers, order = servers_with("torch", directory), random.Random(0)
        async with servers.running() as server:
            await start(server)
            for step in range(1, STEPS + 1):
                await batch(server, order)
                await until_step(server, step)

    asyncio.run(record())
    return directory / "run"


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["replay", *map(str, arguments)], prog_name="ajet")


def files(directory: Path) -> dict[Path, int]:
    """The files with their times, without those that SQLite makes for a reader."""
    found = [p for p in directory.rglob("*") if not p.name.endswith(("-shm", "-wal"))]
    return {path: path.stat().st_mtime_ns for path in found if path.is_file()}


def names(pack: Path) -> list[str]:
    """The names in a pack, without the note."""
    with tarfile.open(pack) as tar:
        return [name for name in tar.getnames() if name != "replay.json"]


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.timeout(300)
def test_all_steps_are_trained_again_to_the_same_bits(run_dir: Path) -> None:
    before = files(run_dir)
    result = replay("rerun", run_dir, "--steps", f"1:{STEPS}", "--json")
    assert result.exit_code == 0, result.output
    assert [row["identical"] for row in rows(result)] == [True] * STEPS
    assert files(run_dir) == before


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_each_step_is_trained_with_the_settings_of_its_time(tmp_path: Path) -> None:
    async def record() -> None:
        servers, order = servers_with("torch", tmp_path), random.Random(0)
        async with servers.running() as server:
            for step, rate in enumerate((1e-2, 1e-2, 1e-3), 1):
                if step != 2:
                    await start(server, learning_rate=rate)
                await batch(server, order)
                await until_step(server, step)
                if step == 2:
                    stop = {"wait_seconds": 60.0}
                    answer = await server.http.post("/v1/run/stop", headers=CONTROL, json=stop)
                    answer.raise_for_status()

    asyncio.run(record())
    run_dir = tmp_path / "run"
    with sqlite3.connect(run_dir / "samples.sqlite3") as store:
        configs = [text for (text,) in store.execute("SELECT config_json FROM steps ORDER BY step")]
    rates = [json.loads(text)["algorithm"]["learning_rate"] if text else None for text in configs]
    assert rates == [1e-2, None, 1e-3]
    # From the model, across the change, and from the checkpoint before it.
    shutil.rmtree(run_dir / "checkpoints" / "step-000002")
    result = replay("rerun", run_dir, "--steps", "1:3", "--json")
    assert result.exit_code == 0, result.output
    assert [row["identical"] for row in rows(result)] == [True] * 3
    result = replay(
        "retrain", run_dir, "--steps", "2:3", "--set", "algorithm.clip_high=0.3", "--json"
    )
    assert result.exit_code == 0, result.output
    assert all(not row["reproduced"]["metrics"] for row in rows(result))


@pytest.mark.timeout(300)
def test_a_changed_record_is_found(run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(run_dir, other)
    with sqlite3.connect(other / "samples.sqlite3") as store:
        store.execute("UPDATE episodes SET reward = reward + 0.5 WHERE rowid = 1")
    result = replay("rerun", other, "--steps", "1", "--json")
    assert result.exit_code == 1, result.output
    (row,) = rows(result)
    assert row["advantage_difference"] > 0
    assert "weights_digest" in row["metrics"]


@pytest.mark.timeout(300)
def test_a_changed_setting_is_compared_with_the_record(run_dir: Path) -> None:
    slower = "algorithm.learning_rate=1e-4"
    result = replay("retrain", run_dir, "--steps", "2:3", "--set", slower, "--json")
    assert result.exit_code == 0, result.output
    for row in rows(result):
        reproduced = row["reproduced"]
        assert not reproduced["metrics"]
        assert reproduced["logprob_difference"] == 0
        # Two minibatches: the gradient of the second is taken elsewhere.
        assert 0.9 < row["gradient_cosine"] < 1
        assert 0 < row["update_norms"][1] < 0.5 * row["update_norms"][0]
        assert row["divergence"] > 0
        assert len(row["episodes"]) == EPISODES
        assert any(one["moves"][0] != one["moves"][1] for one in row["episodes"])


@pytest.mark.timeout(300)
def test_a_change_without_effect_changes_nothing(run_dir: Path) -> None:
    result = replay("retrain", run_dir, "--set", "algorithm.importance=ratio", "--json")
    assert result.exit_code == 0, result.output
    (row,) = rows(result)
    assert row["gradient_cosine"] == pytest.approx(1, abs=1e-12)
    assert row["divergence"] == 0
    assert all(before == after for before, after in row["metrics"].values())


@pytest.mark.timeout(300)
def test_a_pack_is_trained_again_without_its_run(run_dir: Path, tmp_path: Path) -> None:
    pack = tmp_path / "step.tar"
    result = replay("export", run_dir, pack, "--step", "2")
    assert result.exit_code == 0, result.output
    moved = tmp_path / "elsewhere"
    shutil.move(run_dir.parent / "models", moved)
    try:
        gone = replay("rerun", run_dir)
        assert gone.exit_code == 2
        assert "the model of the run cannot be used" in gone.stderr
        assert "--model" in gone.stderr
        found = replay("rerun", run_dir, "--model", moved / "tiny", "--json")
        assert rows(found)[0]["identical"], found.output
        # The store and the model are those of the pack, whatever a hostile one says.
        with tarfile.open(pack) as tar:
            tar.extractall(tmp_path / "hostile", filter="data")
        (tmp_path / "hostile" / "store.json").write_text('{"name": "other", "settings": {}}')
        with tarfile.open(tmp_path / "hostile.tar", "w") as tar:
            for path in map(Path, ("replay.json", *names(pack))):
                tar.add(tmp_path / "hostile" / path, arcname=str(path), recursive=False)
        assert rows(replay("rerun", tmp_path / "hostile.tar", "--json"))[0]["identical"]
        again = replay("rerun", pack, "--json")
        assert again.exit_code == 0, again.output
        assert [(row["step"], row["identical"]) for row in rows(again)] == [(2, True)]
    finally:
        shutil.move(moved, run_dir.parent / "models")
    refused = replay("export", run_dir, pack)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr


def test_rewards_are_computed_anew(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_rewards.py").write_text(
        "def turned(episode):\n"
        "    assert len(episode['calls']) == 2\n"
        "    assert episode['calls'][1]['messages'][-1]['role'] == 'user'\n"
        "    assert episode['calls'][1]['answer']['role'] == 'assistant'\n"
        "    return -episode['reward']\n"
        "def broken(episode):\n"
        "    return {}['x']\n"
        "def infinite(episode):\n"
        "    return float('inf')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = replay("rescore", run_dir, "--steps", "1:3", "--reward", "my_rewards:turned", "--json")
    assert result.exit_code == 0, result.output
    for row in rows(result):
        assert row["rewards"][1] == pytest.approx(-row["rewards"][0])
        assert row["turned"] == row["calls"] == 2 * EPISODES
    for name, words in (("broken", "KeyError: 'x'"), ("infinite", "returned inf")):
        failed = replay("rescore", run_dir, "--reward", f"my_rewards:{name}")
        assert failed.exit_code == 2
        assert words in failed.stderr


def test_a_foreign_archive_is_refused(tmp_path: Path) -> None:
    def write(name: str, *members: tuple[str, bytes]) -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w") as tar:
            for member, content in members:
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return path

    note = ("replay.json", b'{"format": 1, "agentjet": "0.1.0", "step": 1}')
    for path, words in (
        (write("other.tar", ("a.txt", b"hello")), "was not written by"),
        (write("outside.tar", note, ("../outside.txt", b"hello")), "contains '../outside"),
        (write("later.tar", (note[0], b'{"format": 2, "agentjet": "9.0"}')), "needs agentjet 9.0"),
        (write("list.tar", (note[0], b"[]")), "its note is not a JSON object"),
    ):
        result = replay("rerun", path)
        assert result.exit_code == 2, result.output
        assert words in result.stderr
        assert result.stderr.count("was not written by") == (path.name == "other.tar")
    linked = write("linked.tar", note)
    with tarfile.open(linked, "a") as tar:
        link = tarfile.TarInfo("model")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
    assert "contains 'model'" in replay("rerun", linked).stderr
    assert not (tmp_path.parent / "outside.txt").exists()
    truncated = tmp_path / "truncated.tar"
    truncated.write_bytes(write("whole.tar", note, ("x", b"y" * 4096)).read_bytes()[:2048])
    result = replay("rerun", truncated)
    assert result.exit_code == 2
    assert "is damaged" in result.stderr
