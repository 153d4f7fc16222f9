"""Commands that address the server of a run directory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from ajet_cli.commands.run.status import _last_step
from ajet_cli.main import cli
from ajet_core.protocol import ServerStatus
from ajet_testing.servers import TOKENS, Running

ROOT = Path(__file__).resolve().parents[2]

NOWHERE = {"AJET_URL": "http://127.0.0.1:9", "AJET_TOKEN": None}


@pytest.fixture
def run_dir(server: Running, tmp_path: Path) -> Path:
    """The directory of a `LocalServer` that is `server`."""
    inner = tmp_path / "first" / "server"
    tokens = inner / "state" / "agentjet" / "servers"
    tokens.mkdir(parents=True)
    (inner / "server.json").write_text(json.dumps({"url": server.url, "pid": 1}))
    content = {"control": TOKENS.control, "client": TOKENS.client}
    (tokens / f"{urlsplit(server.url).port}.json").write_text(json.dumps(content))
    return inner.parent


async def ajet(*words: str | Path) -> Result:
    runner = CliRunner(env=NOWHERE)
    return await asyncio.to_thread(runner.invoke, cli, [str(word) for word in words])


async def test_a_run_is_paused_and_resumed_by_its_directory(server: Running, run_dir: Path) -> None:
    await server.roll()
    paused = await ajet("pause", run_dir, "--reason", "the disk is full")
    assert paused.output == f"paused; run `ajet resume {run_dir}` to continue\n"
    for directory in (run_dir, run_dir / "server"):
        shown = await ajet("status", directory)
        assert shown.exit_code == 0, shown.output
        assert "the disk is full" in shown.output
    assert "resumed" in (await ajet("resume", run_dir)).output
    assert json.loads((await ajet("status", run_dir, "--json")).output)["state"] == "ROLLING"


async def test_the_live_page_and_the_budget_are_of_the_directory(
    server: Running, run_dir: Path
) -> None:
    await server.roll()
    assert (await ajet("ui", run_dir, "--print")).output.startswith(f"{server.url}/ui/#token=")
    assert "cost" in (await ajet("budget", run_dir)).output


async def test_mixture_and_model_servers_are_of_the_directory(
    server: Running, run_dir: Path
) -> None:
    await server.roll(mixture={"ratios": {"math": 0.5, "code": 0.5}}, batch={"tasks": 4})
    shown = await ajet("mixture", run_dir)
    assert "math" in shown.output, shown.output
    changed = json.loads(
        (await ajet("mixture", run_dir, "math=0.25", "code=0.75", "--json")).output
    )
    assert changed["config"]["ratios"] == {"math": 0.25, "code": 0.75}
    assert "server 0  up" in (await ajet("engine", "list", run_dir)).output
    absent = await ajet("engine", "remove", "http://10.0.0.5:8000", "--run-dir", run_dir)
    assert "10.0.0.5" in absent.output
    assert "127.0.0.1:9" not in absent.output


async def test_a_directory_called_like_a_ratio_is_a_directory(
    server: Running, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.roll(mixture={"ratios": {"math": 1.0}})
    run_dir.rename(run_dir.with_name("lr=1"))
    monkeypatch.chdir(run_dir.parent)
    assert "math" in (await ajet("mixture", "lr=1")).output


@pytest.mark.parametrize("exists", [True, False])
async def test_a_directory_without_a_server_is_refused(tmp_path: Path, *, exists: bool) -> None:
    where = tmp_path / "old"
    if exists:
        where.mkdir()
    refused = await ajet("status", where)
    assert refused.exit_code == 2
    assert str(where) in refused.output
    assert ("no server is running in" in refused.output) == exists


def test_what_shows_whether_a_run_learns_comes_first() -> None:
    golden = ROOT / "tests/protocol/golden/ServerStatus.json"
    status = ServerStatus.model_validate_json(golden.read_text(encoding="utf-8"))
    assert status.last_step is not None
    metrics = {"advantage_mean": 0.5, "entropy": 1.0, "loss": 2.0, "reward_mean": 0.25}
    step = status.last_step.model_copy(update={"metrics": metrics, "findings": []})
    status = status.model_copy(update={"last_step": step, "findings": []})
    ((_, text, _), *_) = _last_step(status, every=True)
    assert text == "reward_mean 0.25, loss 2, entropy 1, advantage_mean 0.5"


async def test_a_directory_and_a_url_are_refused(run_dir: Path) -> None:
    refused = await ajet("status", run_dir, "--url", "http://127.0.0.1:9")
    assert refused.exit_code == 2
    assert "give one of them" in refused.output
