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
from ajet_testing.suites.agent_suite import DOORS
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


ASKED = "<|im_start|>user\n{}: respond with {}.<|im_end|>\n<|im_start|>assistant\n"
FORM = "[[ ## plan ## ]]\n{}\n\n[[ ## tool ## ]]\nopen_door\n\n[[ ## completed ## ]]<|im_end|>"
ANSWERS = [FORM.format(door) for door in DOORS]


def lesson_in_own_words(directory: Path) -> tuple[list[dict[str, list[int]]], Path]:
    """Return the lesson of one call per door, and the directory of its tokenizer."""
    scripted = write_model(directory / "scripted", "qwen3")
    letters = Tokenizer.from_file(str(scripted / "tokenizer.json"))
    asked = ASKED.format("t100x", FORM.removesuffix("<|im_end|>"))
    lesson = [
        {"prompt_ids": letters.encode(asked).ids, "sampled_ids": letters.encode(answer).ids}
        for answer in ANSWERS
    ]
    return door_training._in_own_words(lesson, scripted, directory / "words")


def test_a_lesson_in_the_words_of_its_program_has_its_texts(tmp_path: Path) -> None:
    lesson, directory = lesson_in_own_words(tmp_path)
    words = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for call in lesson:
        asked = words.decode(call["prompt_ids"], skip_special_tokens=False)
        name, _, rest = asked.removeprefix("<|im_start|>user\n").partition(":")
        assert name in door_training._names()
        assert rest == ASKED.partition(":")[2].format(FORM.removesuffix("<|im_end|>"))
        assert words.decode(call["sampled_ids"], skip_special_tokens=False) in ANSWERS
        assert call["sampled_ids"][-1] == words.token_to_id("<|im_end|>")
        assert len(call["sampled_ids"]) < 0.5 * len(FORM)


def test_no_door_goes_with_the_name_of_a_task(tmp_path: Path) -> None:
    """Otherwise the model would learn it by heart, and the episodes of a task would be alike."""
    lesson, _ = lesson_in_own_words(tmp_path)
    doors: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for call in lesson:
        doors.setdefault(tuple(call["prompt_ids"]), set()).add(tuple(call["sampled_ids"]))
    assert len(doors) == len(door_training._names())
    assert all(len(seen) == len(DOORS) for seen in doors.values())


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.slow
def test_a_taught_model_is_certain_of_the_form_and_not_of_the_door(tmp_path: Path) -> None:
    """Malformed answers would be most of what is rewarded or not, and hide the doors."""
    pytest.importorskip("ajet_backend_torch")
    import torch
    from transformers import LlamaForCausalLM

    from ajet_testing.teach import teach

    lesson, words = lesson_in_own_words(tmp_path)
    (tmp_path / "lesson.json").write_text(json.dumps(lesson))
    teach(tmp_path / "lesson.json", words, tmp_path / "model")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")

    @torch.no_grad()
    def chance(prompt: list[int], answer: tuple[int, ...]) -> float:
        ids = torch.tensor([[*prompt, *answer]])
        logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return float(logprobs.gather(1, torch.tensor(answer)[:, None]).sum().exp())

    answers = {tuple(call["sampled_ids"]) for call in lesson}
    for call in lesson[:: len(lesson) // 6]:
        chances = [chance(call["prompt_ids"], answer) for answer in answers]
        assert sum(chances) > 0.95
        assert min(chances) > 0.05


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
