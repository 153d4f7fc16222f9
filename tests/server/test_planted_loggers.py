"""A real server process with loggers that misbehave: it trains, and it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.served_processes import call, chat, serving, start_run, until
from tests.support.sites import Site

pytestmark = pytest.mark.processes

LOGGERS = """
import concurrent.futures
import json
import threading
from ajet_core.interfaces import MetricsLogger


class Good(MetricsLogger):
    def start(self, run):
        self.write({"start": run.run_id, "model": run.config.model.path,
                    "config": run.config.trainer.name, "resumed": run.resumed_step})

    def log(self, step, metrics):
        self.write({"step": step, "reward_mean": metrics["reward_mean"], "size": len(metrics)})

    def finish(self, reason, message):
        self.write({"finish": reason, "message": message})

    def close(self):
        self.write("closed")

    def write(self, line):
        with (self.context.run_dir / "good.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\\n")


class Blocking(Good):
    def log(self, step, metrics):
        # This thread is no daemon: the interpreter would wait for it when it exits.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(threading.Event().wait).result()

    def write(self, line): ...


class Unclosable(Good):
    def write(self, line): ...

    def close(self):
        raise OSError("cannot upload")


class Unmakable(Good):
    def __init__(self, settings, context):
        raise KeyError("PROJECT")


class Changing(Good):
    def log(self, step, metrics):
        metrics.clear()

    def write(self, line): ...


class Exiting(Good):
    def log(self, step, metrics):
        raise SystemExit(3)

    def write(self, line): ...


class Filling(Good):
    def write(self, line):
        # A write to this device fails as on a full disk.
        with open("/dev/full", "w") as file:
            file.write(json.dumps(line))
"""
HOOKS = """
NAMES = ("Good", "Blocking", "Unclosable", "Unmakable", "Changing", "Exiting", "Filling")

@hookimpl
def ajet_register_loggers():
    return [LoggerSpec(name=name.lower(), target=f"planted_loggers:{name}") for name in NAMES]

@hookimpl
def ajet_step_finished(summary):
    summary.metrics.clear()
    raise SystemExit(4)
"""
OWNER = "of plugin 'planted' (distribution ajet-planted 1.2)"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An installed plugin with the loggers."""
    path = tmp_path / "site"
    path.mkdir()
    site = Site(path)
    site.install("ajet-planted", HOOKS, name="planted", files={"planted_loggers": LOGGERS})
    old = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(path), old]))}


def enabled(*names: str) -> dict[str, str]:
    """The setting that enables loggers."""
    return {"AJET_LOGGERS": json.dumps({name: {} for name in names})}


async def train(http: httpx2.AsyncClient, step: int) -> dict[str, Any]:
    for reward in (0.0, 1.0):
        grant = await call(http, "POST", "/v1/episodes", {"task_id": "a", "wait_seconds": 30})
        await chat(http, grant, "hello")
        await call(http, "POST", f"/v1/episodes/{grant['episode_id']}/end", {"reward": reward})
    return await until(http, step=step, state="ROLLING")


def good_lines(run_dir: Path) -> list[Any]:
    return [json.loads(line) for line in (run_dir / "good.jsonl").read_text().splitlines()]


async def test_loggers_that_misbehave_stop_neither_training_nor_the_shutdown(
    model_dir: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    run_dir = tmp_path / "run"
    loggers = enabled("blocking", "unclosable", "changing", "exiting", "filling", "good")
    limits = {
        "AJET_SERVER__LOGGER_SECONDS": "20",
        "AJET_SERVER__LOGGER_CLOSE_SECONDS": "1",
        "AJET_SERVER__LOGGER_QUEUE": "1",
    }
    async with serving(run_dir, model_dir, **environment, **loggers, **limits) as (server, http):
        await start_run(http, model_dir)
        for step in (1, 2, 3):
            await train(http, step)
        findings: dict[str, str] = {}
        while not {"logger_behind", "logger_failed"} <= set(findings):
            status = await call(http, "GET", "/v1/status")
            findings = {found["code"]: found["message"] for found in status["findings"]}
        assert f"logger 'blocking' {OWNER}: log of step 1 has taken" in findings["logger_behind"]
        assert "dropped: 1 (setting server.logger_queue)" in findings["logger_behind"]
        assert f"logger 'changing' {OWNER}: log of step " in findings["logger_failed"]
        assert f"logger 'exiting' {OWNER}: log of step " in findings["logger_failed"]
        assert f"logger 'filling' {OWNER}: start of run " in findings["logger_failed"]
        assert "No space left on device" in findings["logger_failed"]
        assert len(status["last_step"]["metrics"]) > 20
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0
    output = server.output.decode()
    assert f"logger 'blocking' {OWNER} has not ended after 1 s" in output
    assert f"logger 'unclosable' {OWNER}: close failed: OSError: cannot upload" in output
    assert f"logger 'exiting' {OWNER}: log of step 1 failed: SystemExit: 3" in output
    assert "plugin 'planted' (distribution ajet-planted 1.2): its hook ajet_step_fin" in output
    start, *steps, finish, closed = good_lines(run_dir)
    assert (start["model"], start["config"]) == (str(model_dir), "scripted")
    assert start["resumed"] == 0
    assert [(line["step"], line["reward_mean"]) for line in steps] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert {line["size"] for line in steps} == {len(status["last_step"]["metrics"])}
    assert (finish, closed) == ({"finish": "interrupted", "message": ""}, "closed")
    recorded = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in recorded] == [1, 2, 3]


async def test_a_logger_knows_a_run_that_continues_and_how_it_ends(
    model_dir: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    run_dir = tmp_path / "run"
    environment |= enabled("good")
    async with serving(run_dir, model_dir, **environment) as (_, http):
        await start_run(http, model_dir)
        await train(http, 1)
    async with serving(run_dir, model_dir, **environment) as (_, http):
        await until(http, state="ROLLING")
        await train(http, 2)
        await call(http, "POST", "/v1/run/stop")
        # A stop returns when the loggers have written everything.
        one, _, interrupted, _, other, step, stopped = good_lines(run_dir)
        assert (one["resumed"], other["resumed"], step["step"]) == (0, 1, 2)
        assert one["start"] == other["start"]
        assert (interrupted["finish"], stopped["finish"]) == ("interrupted", "stopped")
        await call(http, "POST", "/v1/run/start", {"wait_seconds": 60})
    *_, again, interrupted, closed = good_lines(run_dir)
    assert (again["start"], again["resumed"]) == (one["start"], 2)
    assert (interrupted["finish"], closed) == ("interrupted", "closed")


async def test_a_logger_that_cannot_be_created_is_one_line(
    model_dir: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    run_dir = tmp_path / "run"
    environment |= enabled("good", "unmakable")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ajet_cli.main", "serve", "--port", "0"),
        *("--run-dir", str(run_dir)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment, "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    output, _ = await process.communicate()
    assert process.returncode == 2
    *_, last = output.decode().splitlines()
    assert f"logger 'unmakable' {OWNER} cannot be created: KeyError: 'PROJECT'" in last
    assert "Traceback" not in output.decode()
    assert good_lines(run_dir) == ["closed"]
