"""A program of a framework learns, with the interpreter that a plugin's author has."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_testing import door_training
from tests.agents import plain


class Tools(dict[str, Callable[..., str]]):
    """A model that is still learning calls tools that do not exist."""

    def __missing__(self, name: str) -> Callable[..., str]:
        return lambda **_: f"There is no tool {name}."


def open_door(door: str = "", **_: object) -> str:
    return f"Behind the {door} door: nothing."


async def play(task: str) -> list[str]:
    advice = await replace(plain.planner, messages=[]).run(f"Which door, {task}?")
    worker = replace(plain.worker, messages=[], tools=Tools(open_door=open_door))
    await worker.run(f"{task}: {advice}")
    asked = [call for message in worker.messages for call in message.get("tool_calls", ())]
    return [json.loads(call["function"]["arguments"]).get("door", "") for call in asked]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in an environment that agentjet was installed into."""
    monkeypatch.setattr(door_training, "_DEVELOPMENT", tmp_path / "nowhere")


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_a_program_learns_where_torch_is_installed(elsewhere: None, tmp_path: Path) -> None:
    pytest.importorskip("ajet_backend_torch")
    directory = tmp_path / "run"
    directory.mkdir()
    door_training.assert_learns(play, directory)


def test_without_torch_the_line_that_installs_it_is_named(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_training, "_BACKEND", "no_such_backend")
    install = r"pip install 'agentjet\[testing,torch\]>=0.1'"
    with pytest.raises(pytest.skip.Exception, match=install):
        door_training.learning_python()


def test_this_interpreter_trains_if_it_has_torch(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_training, "_BACKEND", importlib.__name__)
    assert door_training.learning_python() == sys.executable
