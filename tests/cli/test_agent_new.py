"""`ajet new agent`: a project whose tests pass and whose agent learns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.plugin_projects import ajet, run

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without the settings of the user."""
    for name in [name for name in os.environ if name.startswith("AJET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def new_agent() -> Path:
    """Create a project in the working directory."""
    done = ajet("new", "agent", "word-agent")
    assert done.exit_code == 0, done.output
    return Path("word-agent").absolute()


@pytest.mark.slow
def test_a_project_has_its_files() -> None:
    project = new_agent()
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert files == {
        *("README.md", "agent.py", "ajet.toml", "pyproject.toml", "reward.py", "tasks.jsonl"),
        *(
            "train.py",
            "tiny_model.py",
            "tests/test_reward.py",
            "tests/test_training.py",
            ".gitignore",
        ),
    }
    assert 'name = "word-agent"' in (project / "pyproject.toml").read_text()
    assert (project / "README.md").read_text().startswith("# word-agent\n")


@pytest.mark.slow
def test_the_names_of_its_files_are_in_its_readme() -> None:
    project = new_agent()
    readme = (project / "README.md").read_text()
    for path in project.glob("*.*"):
        assert path.name in {"README.md", "pyproject.toml", ".gitignore"} or path.name in readme


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_its_tests_pass_as_it_is() -> None:
    pytest.importorskip("openai")
    printed = run(new_agent(), *PYTEST)
    assert "7 passed" in printed


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_its_tests_notice_a_reward_that_is_wrong() -> None:
    pytest.importorskip("openai")
    project = new_agent()
    reward = project / "reward.py"
    reward.write_text(reward.read_text().replace("return 1.0 if", "return 0.5 if"))
    done = subprocess.run(PYTEST, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "test_an_answer_has_to_be_right" in done.stdout
    assert "test_each_episode_gets_its_reward" in done.stdout


@pytest.mark.slow
def test_its_code_has_the_style_of_agentjet() -> None:
    project = new_agent()
    rules = ("--isolated", "--select", "E,F,I,UP,B,D1", "--ignore", "D103", "--line-length", "100")
    run(project, sys.executable, "-m", "ruff", "check", *rules, ".")
    run(project, sys.executable, "-m", "ruff", "format", "--check", "--line-length", "100", ".")


def test_an_existing_directory_is_left_alone(directory: Path) -> None:
    (directory / "word-agent").mkdir()
    done = ajet("new", "agent", "word-agent")
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert "word-agent exists already" in done.output
    assert list((directory / "word-agent").iterdir()) == []


@pytest.mark.parametrize("name", ["my agent", "Ünder", "-x", "1st", "a--b-", "../up", "agentjet"])
def test_a_bad_name_is_refused(name: str, directory: Path) -> None:
    done = ajet("new", "agent", "--", name)
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert f"{name!r}" in done.output
    assert list(directory.iterdir()) == []


def rewards(project: Path, *arguments: str) -> list[float]:
    """Run the project's program, and return the reward of each epoch."""
    pytest.importorskip("ajet_backend_torch")
    pytest.importorskip("openai")
    printed = run(project, sys.executable, "train.py", *arguments).splitlines()
    return [float(line.rpartition(" ")[2]) for line in printed if line.startswith("epoch ")]


@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_its_program_trains_and_continues() -> None:
    project = new_agent()
    assert len(rewards(project, "1")) == 1
    assert len(rewards(project, "1")) == 1
    lines = (project / "runs" / "first" / "server" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_its_agent_learns() -> None:
    by_epoch = rewards(new_agent())
    assert len(by_epoch) == 20
    before, after = sum(by_epoch[:3]) / 3, sum(by_epoch[-3:]) / 3
    assert after >= before + 0.3, by_epoch
