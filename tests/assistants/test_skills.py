"""Skills are valid, short and true: their blocks run in the order of the page."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentjet import SwarmClient
from ajet_cli.assist.skills import skills
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.support.gateway_processes import unused_port

FOLDER = Path(__file__).parents[2] / "skills"
NAMES = sorted(path.name for path in FOLDER.iterdir())
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
JOINING = "python joined.py"
JOINED = """\
import sys

import agent
import agentjet


def joined(solve, tasks, config):
    assert config.batch.tasks == len(tasks)
    return agentjet.train(solve, tasks)


agent.train = joined
agent.main(int(sys.argv[1]))
"""
"""The agent of the skill for training, with the run that is there instead of one of its own."""
LINES = 300
LIMIT = 300


def blocks(name: str) -> list[tuple[str, str, str]]:
    """File, language and text of each block of a skill."""
    return BLOCK.findall(skills()[name])


def run(
    directory: Path, name: str, environ: dict[str, str], instead: tuple[str, str] = ("", "")
) -> list[str]:
    """Run all blocks of a skill in order; return what each prints.

    :param instead: a part of a command, and what is run in its place.
    """
    scripts = sysconfig.get_path("scripts")
    environ = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", **environ}
    printed, used = [], ""
    for file, language, text in blocks(name):
        if file:
            (directory / file).write_text(text)
            continue
        command = {
            "bash": ["bash", "-euo", "pipefail", "-c", text],
            "python": [sys.executable, "-c", text],
        }[language]
        used += text
        command[-1] = command[-1].replace(*instead) if instead[0] else command[-1]
        # What a block leaves running keeps its output open, so it is a file.
        with (directory / "output").open("w+") as output:
            done = subprocess.run(
                command,
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=LIMIT,
                check=False,
            )
            output.seek(0)
            printed.append(output.read())
        assert done.returncode == 0, f"{text}\n{printed[-1]}"
    assert all(file in used for file, *_ in blocks(name) if file)
    return printed


def end_server(directory: Path) -> None:
    """End the server that the skill for training has started, if it has not ended it itself."""
    pid = directory / "runs" / "server.pid"
    if pid.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGTERM)


def test_there_are_skills_for_training_debugging_plugins_and_studies() -> None:
    assert NAMES == ["agentjet-debug", "agentjet-plugin", "agentjet-research", "agentjet-train"]
    assert sorted(skills()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_skill_is_valid_and_short(name: str) -> None:
    skills_ref = pytest.importorskip("skills_ref")
    assert skills_ref.validate(FOLDER / name) == []
    assert len(skills()[name].splitlines()) < LINES
    # Copies have only this file.
    assert [path.name for path in (FOLDER / name).iterdir()] == ["SKILL.md"]


@pytest.mark.parametrize("name", NAMES)
def test_each_block_is_run_and_none_polls(name: str) -> None:
    assert blocks(name)
    assert skills()[name].count("```") == 2 * len(blocks(name))
    for file, language, text in blocks(name):
        assert language in ("bash", "python") or (file and language == "toml")
        assert not re.search(r"\bsleep\b|\bwhile\b|--watch", text)


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[ScriptedSwarm]:
    """A server with ended and aborted episodes, whose run directory is `swarm/run`."""
    replies = [ScriptedReply(prompt="", says=("Yes.<|im_end|>",))]
    with ScriptedSwarm(tmp_path / "swarm", replies, rollout={"allow_no_calls": True}) as swarm:
        with SwarmClient(swarm.url, swarm.token) as client:
            client.abort_episode(client.begin_episode("a"), "the tool crashed", final=True)
            client.end_episode(client.begin_episode("b"), 1.0)
        yield swarm


@pytest.mark.processes
def test_the_skill_for_debugging_is_true(swarm: ScriptedSwarm, tmp_path: Path) -> None:
    printed = "".join(
        run(
            tmp_path,
            "agentjet-debug",
            {
                "AJET_URL": swarm.url,
                "AJET_TOKEN": swarm.tokens.control,
                "RUN": str(tmp_path / "swarm" / "run"),
            },
        )
    )
    assert "ROLLING step 0" in printed
    assert "a the tool crashed" in printed


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_the_skill_for_plugins_is_true(tmp_path: Path) -> None:
    for package in ("copier", "build", "hatchling"):
        pytest.importorskip(package)
    printed = "".join(run(tmp_path, "agentjet-plugin", {"HOME": str(tmp_path)}))
    assert " passed" in printed
    assert (tmp_path / "ajet-halved" / "dist").is_dir()


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_the_skill_for_research_runs_a_study(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("ajet_backend_torch")
    from ajet_research.steering import leader_of

    try:
        printed = run(tmp_path, "agentjet-research", {})
    finally:
        directory = tmp_path / "topic.study"
        if leader := leader_of(directory) if directory.exists() else "":
            os.kill(int(leader), signal.SIGKILL)
    text = "".join(printed)
    assert "The study can start: 25 trials of 2 arms, at most 0.417 h." in printed[0]
    assert "The study is asking." in text
    assert "Use method b: it is better than a.\nb-vs-a better" in text
    assert "0 problems" in printed[-2]
    assert "budget.compute_hours: 1 -> 2" in printed[-2]
    assert "The study can start: 12 trials of 2 arms, at most 3 h." in printed[-1]


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_skill_for_training_is_true_but_for_its_model(tmp_path: Path) -> None:
    (tmp_path / "joined.py").write_text(JOINED)
    replies = [ScriptedReply(prompt="", says=("up<|im_end|>",))]
    with ScriptedSwarm(tmp_path / "swarm", replies) as swarm:
        environ = {
            "MODELS": str(tmp_path),
            "MODEL": swarm.config.model.path,
            "PORT": str(unused_port()),
            "EPOCHS": "1",
            "AJET_URL": swarm.url,
            "AJET_TOKEN": swarm.tokens.control,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        try:
            printed = run(tmp_path, "agentjet-train", environ, ("python agent.py", JOINING))
        finally:
            end_server(tmp_path)
        texts = "".join(printed)
        assert "epoch 1: reward 0." in texts
        assert "held out" in {one.tag for one in swarm.episodes()}
        assert swarm.paused == ""


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_skill_for_training_trains_a_model(tmp_path: Path) -> None:
    pytest.importorskip("ajet_backend_torch")
    from ajet_demo.tiny_model import copy_tiny_model

    model = tmp_path / "models" / "tiny"
    copy_tiny_model(model)
    port = str(unused_port())
    environ = {
        "MODELS": str(model.parent),
        "MODEL": str(model),
        "PORT": port,
        "EPOCHS": "1",
        "AJET_URL": f"http://127.0.0.1:{port}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    try:
        printed = run(tmp_path, "agentjet-train", environ)
    finally:
        end_server(tmp_path)
    assert "no server is running" in printed[0]
    (exported,) = [Path(text.strip()) for text in printed if "/export/" in text]
    assert (exported / "model.safetensors").is_file()
