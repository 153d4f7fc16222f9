"""`docs/quickstart.md` is true: its commands exist, and its snippets run in the page's order."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_demo.command import demo
from ajet_demo.orchestrate import MODEL_DIR, TRAINED_DIR

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
LINES = [line for language, fence in FENCES if not language for line in fence.splitlines()]
COMMANDS = sorted(
    {line for line in LINES if line.startswith("ajet ")}
    | set(re.findall(r"`(ajet [^`\n]+)`", PAGE)),
)
DEMO = "runs/demo-seed0"


def example(name: str) -> str:
    """The code between an example's marker and the end of its fence."""
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1)


def is_installed(distribution: str) -> bool:
    return any(importlib.metadata.distributions(name=distribution))


def command_of(words: list[str]) -> tuple[list[str], list[str]]:
    """The words that name a command, and the options and arguments that follow."""
    with click.Context(cli) as context:
        if words[0] == "demo" and not is_installed("agentjet-demo"):
            pytest.skip("needs the plugin agentjet-demo")
        command = cli.get_command(context, words[0])
        assert command is not None, words[0]
        if isinstance(command, click.Group):
            return words[:2], words[2:]
    return words[:1], words[1:]


def test_there_are_commands_and_two_examples() -> None:
    assert {"ajet demo --browser", "ajet status", "ajet doctor"} <= set(COMMANDS)
    assert re.findall(r"<!-- example: (\w+) -->", PAGE) == ["agent", "stop"]


def test_examples_import_the_public_package() -> None:
    for name in ("agent", "stop"):
        assert re.search(r"^from agentjet import ", example(name), re.MULTILINE)
        assert not re.search(r"^(from|import) ajet_", example(name), re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_options_exist(line: str) -> None:
    name, rest = command_of(shlex.split(line)[1:])
    shown = CliRunner().invoke(cli, [*name, "--help"])
    assert shown.exit_code == 0, shown.output
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown.output, re.MULTILINE)
    assert [word for word in rest if word.startswith("--") and word not in options] == []


def test_what_it_installs_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = (ROOT / "constraints" / "dev.txt").read_text(encoding="utf-8").splitlines()
    installs = [shlex.split(line)[2] for line in LINES if line.startswith("pip install ")]
    assert installs[0] in pinned
    extra = re.fullmatch(r"agentjet\[(\w+)\]>=0\.1", installs[1])
    assert extra is not None
    assert extra.group(1) in project["optional-dependencies"]


def test_the_demo_leaves_the_directories_that_are_named() -> None:
    helps = [option.help or "" for option in demo.params if isinstance(option, click.Option)]
    assert any("[default: runs/demo-seed{SEED}]" in text for text in helps)
    assert f"(`{MODEL_DIR}`)" in PAGE
    assert f"(`{TRAINED_DIR}`)" in PAGE
    assert f'model="{DEMO}/{MODEL_DIR}"' in example("agent")


@pytest.fixture
def quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory after step 3 of the page, without the training of the demo."""
    pytest.importorskip("ajet_backend_torch")
    from ajet_demo.tiny_model import copy_tiny_model

    for name in [name for name in os.environ if name.upper().startswith("AJET_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    copy_tiny_model(tmp_path / DEMO / MODEL_DIR)
    line = next(line for line in LINES if line.startswith("ajet serve "))
    command = [sys.executable, "-m", "ajet_cli.main", *shlex.split(line)[1:], "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for logged in process.stderr:
            if "listening on" in logged:
                break
        address = json.loads((tmp_path / "runs" / "first" / "server.json").read_text())
        monkeypatch.setenv("AJET_URL", address["url"])
        yield tmp_path
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.torch
def test_the_snippets_run_in_order(quickstart: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example("agent"), "quickstart.md", "exec"), scope)
    scope["main"](epochs=2)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["epoch 1", "epoch 2"]

    for line in LINES:
        if line.startswith(("ajet status", "ajet inspect runs/first")) and "--watch" not in line:
            ran = CliRunner().invoke(cli, shlex.split(line)[1:])
            assert ran.exit_code == 0, ran.output
    assert "<html" in (quickstart / "step.html").read_text(encoding="utf-8")

    exec(compile(example("stop"), "quickstart.md", "exec"), {"__name__": "example"})
    exported = Path(capsys.readouterr().out.strip().splitlines()[-1])
    assert (exported / "model.safetensors").is_file()
    steps = (quickstart / "runs" / "first" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(steps[-1])["step"] == 2
