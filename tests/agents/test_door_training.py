"""A program of a framework learns, with the interpreter that a plugin's author has."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ajet_testing import door_training
from ajet_testing.tokenizers import write_model
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


def test_a_lesson_in_the_words_of_its_program_is_the_same_and_shorter(tmp_path: Path) -> None:
    ends = ["[[ ## plan ## ]]\nleft<|im_end|>", "[[ ## plan ## ]]\nright<|im_end|>"]
    asked = "<|im_start|>user\nRespond with [[ ## plan ## ]].<|im_end|>\n<|im_start|>assistant\n"
    scripted = write_model(tmp_path / "scripted", "qwen3")
    letters = Tokenizer.from_file(str(scripted / "tokenizer.json"))
    lesson = [
        {"prompt_ids": letters.encode(asked).ids, "sampled_ids": letters.encode(end).ids}
        for end in ends
    ]
    shorter, directory = door_training._in_own_words(lesson, scripted, tmp_path / "words")
    words = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for one, before, end in zip(shorter, lesson, ends, strict=True):
        assert words.decode(one["prompt_ids"], skip_special_tokens=False) == asked
        assert words.decode(one["sampled_ids"], skip_special_tokens=False) == end
        assert one["sampled_ids"][-1] == words.token_to_id("<|im_end|>")
        for name, ids in one.items():
            assert len(ids) < 0.7 * len(before[name])


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
