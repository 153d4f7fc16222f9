"""Tokenizer, template and model for worlds."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("renderers")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import ConfigError
from ajet_core.interfaces import ComponentSettings, WorldAnswer, WorldCall
from ajet_worlds import load_world, tiny_model, world_specs
from ajet_worlds.demonstrations import assistant_turn, demonstrate, demonstrate_calls, encode_turn
from ajet_worlds.grid import GridWorld
from ajet_worlds.gridwalk import DIRECTIONS, TOOLS, GridWalk
from ajet_worlds.rehearsal import rehearse
from tests.support.tiers import examples

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@functools.cache
def the_tokenizer() -> Any:
    return tiny_model.build_tokenizer([GridWorld(ComponentSettings())])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return the_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Any:
    return tiny_model.qwen3_renderer(tokenizer)


def call(direction: str, id_: str = "c1") -> dict[str, Any]:
    arguments = json.dumps({"direction": direction})
    return {
        "id": id_,
        "type": "function",
        "function": {"name": "move", "arguments": arguments},
    }


def moving(direction: str) -> WorldAnswer:
    return WorldAnswer(calls=(WorldCall.of("move", direction=direction),))


def conversation() -> list[dict[str, Any]]:
    walk = GridWalk("0")
    messages = walk.messages()
    for number, direction in enumerate(("up", "left", "down")):
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [call(direction, f"c{number}")]}
        )
        reply = walk.move(direction)
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": reply})
    return messages


def by_template(tokenizer: Any, messages: Sequence[Any], tools: Any, prompt: bool) -> Any:
    return tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=prompt, return_dict=False
    )


@pytest.mark.parametrize("tools", [TOOLS, None])
@pytest.mark.parametrize("prompt", [True, False])
def test_template_and_renderer_agree(
    tokenizer: Any, renderer: Any, tools: Any, prompt: bool
) -> None:
    messages = conversation()
    for end in range(1, len(messages) + 1):
        rendered = renderer.render_ids(messages[:end], tools=tools, add_generation_prompt=prompt)
        assert by_template(tokenizer, messages[:end], tools, prompt) == rendered


PIECES = ["\n", " ", "user", "assistant\n", "goal is ", "7", "ä", "{", "<tool_call>"]
TEXT = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=3), st.booleans())
def test_template_and_renderer_agree_on_odd_texts(
    turns: list[tuple[str, str, str]], prompt: bool
) -> None:
    tokenizer = the_tokenizer()
    renderer = tiny_model.qwen3_renderer(tokenizer)
    messages: list[dict[str, Any]] = []
    for asked, said, replied in turns:
        messages += [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": said, "tool_calls": [call("up")]},
            {"role": "tool", "tool_call_id": "c1", "content": replied},
        ]
    rendered = renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=prompt)
    assert by_template(tokenizer, messages, TOOLS, prompt) == rendered


@pytest.mark.parametrize("direction", list(DIRECTIONS))
def test_a_turn_survives_parsing(tokenizer: Any, renderer: Any, direction: str) -> None:
    token_ids = encode_turn(tokenizer, assistant_turn(moving(direction)))
    parsed = renderer.parse_response(token_ids, tools=TOOLS)
    (found,) = parsed.tool_calls
    assert (parsed.content, found.name, found.arguments) == ("", "move", {"direction": direction})


def test_demonstrations_are_what_the_gateway_serves(tokenizer: Any, renderer: Any) -> None:
    (demo,) = demonstrate(
        renderer, tokenizer, GridWorld(ComponentSettings()), "t", random.Random(1)
    )
    assert len(demo.token_ids) == len(demo.sampled)
    sampled = [t for t, s in zip(demo.token_ids, demo.sampled, strict=True) if s]
    turns = tokenizer.decode(sampled, skip_special_tokens=False).split("<|im_end|>")[:-1]
    assert 2 <= len(turns) <= 6
    assert all(
        f"{turn}<|im_end|>" in map(assistant_turn, map(moving, DIRECTIONS)) for turn in turns
    )


def test_prompts_are_short_and_any_text_survives(tokenizer: Any, renderer: Any) -> None:
    assert len(tokenizer) == tiny_model.VOCABULARY
    prompt = renderer.render_ids(GridWalk("0").messages(), tools=TOOLS, add_generation_prompt=True)
    assert len(prompt) < 130
    odd = "日本 \x00 ß\n\n<tool_call>"
    assert tokenizer.decode(tokenizer.encode(odd), skip_special_tokens=False) == odd


def test_the_warm_up_lowers_the_loss_and_reports(tokenizer: Any) -> None:
    model = tiny_model.build_model(tokenizer, seed=0)
    seen: list[tiny_model.WarmupProgress] = []
    last = tiny_model.warm_up(
        model, tokenizer, [GridWorld(ComponentSettings())], seed=0, steps=12, progress=seen.append
    )
    assert [p.step for p in seen] == list(range(1, 13))
    assert {p.steps for p in seen} == {12}
    assert last == seen[-1].loss
    assert seen[-1].loss < 0.6 * seen[0].loss


@pytest.mark.parametrize("names", [["grid"], ["grid", "memory", "bandit"]])
def test_a_shared_beginning_changes_neither_loss_nor_gradient(names: list[str]) -> None:
    worlds, tokenizer = [load_world(name) for name in names], tokenizer_of_all()
    renderer = tiny_model.qwen3_renderer(tokenizer)
    rng = random.Random(0)
    shown = [
        one
        for number in range(3)
        for w in worlds
        for one in demonstrate(renderer, tokenizer, w, f"t-{number}", rng)
    ]
    model = tiny_model.build_model(tokenizer, seed=0)
    ours = tiny_model._loss(model, shown)
    ours.backward()
    gradient = [parameter.grad.clone() for parameter in model.parameters()]
    total, weight = torch.zeros(()), 0.0
    for one in shown:
        ids = torch.tensor([one.token_ids])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
        weights = torch.tensor([1.0 if sampled else 0.1 for sampled in one.sampled[1:]])
        total = total - (logprobs.gather(-1, ids[0, 1:, None])[:, 0] * weights).sum()
        weight += float(weights.sum())
    model.zero_grad()
    (total / weight).backward()
    torch.testing.assert_close(ours, total / weight)
    torch.testing.assert_close(gradient, [p.grad for p in model.parameters()])


create = functools.partial(tiny_model.create_tiny_model, worlds=[GridWorld(ComponentSettings())])


def files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir()}


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        create(tmp_path / name, seed=seed, warmup_steps=2)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    changed = {
        n for n, content in files(tmp_path / "a").items() if files(tmp_path / "c")[n] != content
    }
    assert changed == {"model.safetensors"}


def test_the_number_of_threads_changes_no_weight(tokenizer: Any) -> None:
    weights = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        model = tiny_model.build_model(tokenizer, 0)
        tiny_model.warm_up(model, tokenizer, [GridWorld(ComponentSettings())], seed=0, steps=4)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.set_num_threads(1)
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


def test_the_directory_is_a_hugging_face_model(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    report = create(tmp_path / "m", seed=0, warmup_steps=0)
    assert report.loss is None
    assert 100_000 < report.parameters < 200_000
    assert {p.name for p in tmp_path.iterdir()} == {"m"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template
    assert model.config.num_attention_heads == 2
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id
    prompt = tokenizer.apply_chat_template(
        GridWalk("0").messages(), tools=TOOLS, add_generation_prompt=True, return_dict=False
    )
    assert model(input_ids=torch.tensor([prompt])).logits.shape[-1] == report.vocabulary


def test_a_model_is_never_written_over(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists"):
        create(tmp_path, seed=0)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    class Broken:
        def save_pretrained(self, _: Path) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        tiny_model.save(Broken(), Broken(), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


WORLDS = [spec.name for spec in world_specs()]


@functools.cache
def tokenizer_of_all() -> Any:
    return tiny_model.build_tokenizer([load_world(name) for name in WORLDS])


@pytest.mark.parametrize("name", WORLDS)
def test_one_tokenizer_serves_every_world(name: str) -> None:
    world, tokenizer = load_world(name), tokenizer_of_all()
    renderer = tiny_model.qwen3_renderer(tokenizer)
    for policy in (world.expert, world.novice):
        for exchange in rehearse(world, "t", policy, random.Random(0)).exchanges:
            prompt, said = exchange.prompt, exchange.answer
            tools = list(prompt.tools) or None
            rendered = renderer.render_ids(
                list(prompt.messages), tools=tools, add_generation_prompt=True
            )
            assert by_template(tokenizer, list(prompt.messages), tools, True) == rendered
            token_ids = encode_turn(tokenizer, assistant_turn(said))
            parsed = renderer.parse_response(token_ids, tools=tools)
            calls = [(call.name, call.arguments) for call in parsed.tool_calls]
            assert parsed.content == said.text
            assert calls == [(call.name, json.loads(call.arguments)) for call in said.calls]
            assert len(token_ids) <= prompt.max_tokens


def test_a_rewritten_history_is_a_conversation_of_its_own() -> None:
    world, tokenizer = load_world("memory"), tokenizer_of_all()
    shown = demonstrate(
        tiny_model.qwen3_renderer(tokenizer), tokenizer, world, "t", random.Random(0)
    )
    texts = [tokenizer.decode(one.token_ids, skip_special_tokens=False) for one in shown]
    assert len(texts) == 5, "20 turns with a note every fourth"
    assert all(text.count("<|im_start|>assistant") == 4 for text in texts)
    assert all("note" in text for text in texts[:4])
    assert "open" in texts[4]


def test_a_model_may_be_made_for_several_worlds(tmp_path: Path) -> None:
    worlds = [load_world("bandit"), load_world("pair")]
    report = tiny_model.create_tiny_model(tmp_path / "m", worlds=worlds, seed=0, warmup_steps=2)
    assert report.loss is not None
    assert (tmp_path / "m" / "model.safetensors").is_file()


def test_examples_are_answered_in_their_form_and_rendered_as_they_are_served(
    tmp_path: Path,
) -> None:
    messages = conversation()
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            messages[number] = {**message, "content": "north is cold"}
    example = tiny_model.ChatExample(messages, TOOLS)
    calls = list(example.calls())
    assert len(calls) == 3
    assert calls[1].prompt.messages[-1]["content"] == "north is cold"
    tokenizer = tiny_model.build_tokenizer([], [example])
    renderer = tiny_model.qwen3_renderer(tokenizer)
    (shown,) = demonstrate_calls(renderer, tokenizer, calls)
    first = renderer.render_ids(
        list(calls[0].prompt.messages), tools=TOOLS, add_generation_prompt=True
    )
    assert shown.token_ids[: len(first)] == first
    sampled = [t for t, s in zip(shown.token_ids, shown.sampled, strict=True) if s]
    assert tokenizer.decode(sampled, skip_special_tokens=False).count("<|im_end|>") == 3
    report = tiny_model.create_tiny_model(tmp_path / "m", examples=[example], warmup_steps=30)
    assert report.loss is not None
    assert report.loss < 1


def test_a_model_without_anything_to_imitate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="worlds or examples"):
        tiny_model.create_tiny_model(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
