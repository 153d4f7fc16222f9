"""A real assistant drives a run and a study through `ajet mcp`, with a scripted model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from agentjet import SwarmClient
from ajet_cli.studies import drivers
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import tool_call

pytestmark = pytest.mark.processes

# Four equal waits would be a loop that opencode asks about, and `opencode run` cannot be asked.
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("swarm_status", {}),
    ("swarm_start", {}),
    *([("swarm_wait", {"step": 1, "seconds": 0})] * 4),
    ("swarm_explain", {}),
)
PROFILE = {
    "provider": {
        "ajet": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "", "apiKey": ""},
            "models": {"default": {}},
        }
    }
}


def replies() -> list[ScriptedReply]:
    """One call after the other, by the number of results in the prompt."""
    says = [tool_call(f"agentjet_{name}", json.dumps(given)) for name, given in CALLS]
    by_turn = [
        ScriptedReply(prompt="<tools>" + "(.*<tool_response>)" * turn, says=(text,))
        for turn, text in enumerate([*says, "The run waits for episodes.<|im_end|>"])
    ]
    return [*reversed(by_turn), ScriptedReply(prompt=".", says=("A title<|im_end|>",))]


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[ScriptedSwarm]:
    """A server whose run is configured and has ended."""
    with ScriptedSwarm(
        tmp_path / "driven", [ScriptedReply(prompt="", says=("Yes.<|im_end|>",))]
    ) as swarm:
        with SwarmClient(swarm.url, swarm.tokens.control) as control:
            control.stop_engine()
            control.sync_train_config(swarm.config)
        yield swarm


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_opencode_lists_and_calls_the_tools(driven: ScriptedSwarm, tmp_path: Path) -> None:
    if shutil.which("opencode") is None:
        pytest.skip("opencode is not on PATH")
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    install = [sys.executable, "-m", "ajet_cli.main", "assist", "install", "--for", "opencode"]
    subprocess.run(install, cwd=project, check=True, capture_output=True)
    with (
        ScriptedSwarm(tmp_path / "model", replies(), max_context=1_000_000) as model,
        SwarmClient(model.url, model.token) as client,
    ):
        episode = client.begin_episode("drive a run")
        options = {"baseURL": episode.base_url, "apiKey": episode.api_key}
        PROFILE["provider"]["ajet"]["options"] = options
        config = home / ".config/opencode/opencode.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps(PROFILE))
        done = subprocess.run(
            ["opencode", "run", "-m", "ajet/default", "Start the run and wait for a step."],
            cwd=project,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "AJET_URL": driven.url,
                "AJET_TOKEN": driven.tokens.control,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        last = max((model.text(call) for call in model.calls(episode.episode_id)), key=len)
    assert "The run waits for episodes." in done.stdout
    results = re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", last, re.DOTALL)
    answers = [json.loads(result)["data"] for result in results]
    assert len(answers) == len(CALLS)
    assert [answers[0]["state"], answers[1]["state"]] == ["OFFLINE", "ROLLING"]
    assert [answer["reached"] for answer in answers[2:6]] == [False] * 4
    with SwarmClient(driven.url, driven.token) as client:
        assert client.status().state == "ROLLING"


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(1300)
def test_opencode_leaves_the_ledger_of_a_study_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("opencode") is None:
        pytest.skip("opencode is not on PATH")
    pytest.importorskip("scipy")
    both = {name: drivers.DRIVERS[name] for name in ("in-process", "opencode")}
    monkeypatch.setattr(drivers, "DRIVERS", both)
    result = drivers.run_drivers(seed=0)
    assert (result["problems"], result["skipped"]) == ([], {})
    assert set(result["drivers"]) == set(both)
    assert (result["ledgers"], result["passed"]) == (1, True)
