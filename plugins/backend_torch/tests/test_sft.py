"""``ajet sft`` with the trainer ``torch``: from a dataset, and from a run's best episodes."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from test_exact_run import STEPS, batch, start, until_step
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen2Config

from ajet_cli.main import cli
from ajet_cli.sft.training import SftRun
from ajet_core.errors import TrainerError
from ajet_core.files import lock_file
from ajet_core.protocol import ModelConfig
from ajet_server.gateway.rendering.factory import make_renderer
from ajet_testing.real_trainer import servers_with
from ajet_testing.servers import write_scripted_model

pytestmark = pytest.mark.usefixtures("worker_tasks")

COLOURS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black"}
TOOL = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paint it.",
        "parameters": {"type": "object", "properties": {"colour": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_scripted_model(tmp_path_factory.mktemp("sft") / "tiny")
    size = Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def asked(thing: str) -> dict[str, str]:
    return {"role": "user", "content": f"Which colour has {thing}?"}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Conversations of two answers, with and without tools."""
    rows: list[dict[str, Any]] = []
    for thing, colour in COLOURS.items():
        call = {"name": "paint", "arguments": {"colour": colour}}
        rows += [
            {"messages": [asked(thing), {"role": "assistant", "content": colour}]},
            {
                "messages": [
                    asked(thing),
                    {"role": "assistant", "content": colour},
                    {"role": "user", "content": "Paint it!"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "1", "type": "function", "function": call}],
                    },
                ],
                "tools": [TOOL],
            },
        ]
    return written(tmp_path / "colours.jsonl", rows)


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sft(*arguments: object) -> Result:
    settings = (
        "--set", "trainer.settings.device=cpu",
        "--set", "trainer.settings.measure_costs=false",
        "--set", "model.renderer=qwen3",
    )  # fmt: skip
    return CliRunner().invoke(cli, ["sft", *map(str, arguments), *settings], prog_name="ajet")


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def answered(directory: Path, thing: str) -> str:
    """The greedy answer of an exported model."""
    renderer = make_renderer(ModelConfig(path=str(directory), renderer="qwen3"), directory)
    from ajet_server.gateway.formats.chat import read_chat_request

    request = read_chat_request(json.dumps({"messages": [asked(thing)]}).encode())
    ids = renderer.render(request.messages, None).ids
    module = AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.no_grad():
        whole = module.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)
    return renderer.parse(whole[0, len(ids) :].tolist(), ids, None).content


@pytest.mark.timeout(300)
def test_a_model_learns_the_answers_of_a_dataset(
    model: Path, dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    # Those with tools are long.
    short = [json.loads(line) for line in dataset.read_text().splitlines()[::2]]
    dataset = written(dataset, short)
    options = ("--model", model, "--held-out", dataset, "--epochs", 250, "--batch-size", 8)
    rate = ("--set", "algorithm.learning_rate=1e-2", "--set", "algorithm.schedule=linear")
    steps = lines(sft(dataset, out, *options, *rate, "--json"))
    assert len(steps) == steps[0]["steps"] == 250
    assert steps[0]["loss"] == pytest.approx(math.log(module_size(model)), rel=0.2)
    assert steps[-1]["held_out_loss"] < 0.05
    assert steps[-1]["learning_rate"] < 0.1 * steps[0]["learning_rate"]
    # The loss of a step is that of the weights before it.
    assert steps[1]["loss"] == pytest.approx(steps[0]["held_out_loss"], rel=1e-3)
    assert {thing: answered(out, thing) for thing in COLOURS} == COLOURS
    assert not out.with_name("out.unfinished").exists()


def module_size(path: Path) -> int:
    return int(json.loads((path / "config.json").read_text())["vocab_size"])


@pytest.mark.timeout(300)
def test_the_gradient_is_that_of_the_likelihood(model: Path, dataset: Path, tmp_path: Path) -> None:
    """One step of plain AdamW on the mean loss of all tokens gives the same weights."""
    out = tmp_path / "out"
    rate = 1e-3
    plain = [
        f"algorithm.learning_rate={rate}",
        "algorithm.max_grad_norm=0",
        "algorithm.max_update_rms=0",
    ]
    chosen = [word for setting in plain for word in ("--set", setting)]
    (step,) = lines(sft(dataset, out, "--model", model, *chosen, "--json"))
    from ajet_cli.sft.conversations import read_conversations

    renderer = make_renderer(ModelConfig(path=str(model), renderer="qwen3"), model)
    rows = [json.loads(line) for line in dataset.read_text().splitlines()]
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    losses = []
    for calls in read_conversations(rows, renderer):
        for call in calls:
            ids = torch.tensor([call.token_ids])
            logits = module(ids).logits[0, :-1]
            each = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
            losses.append(each[-len(call.sampled_ids) :])
    loss = torch.cat(losses).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.0).step()
    assert step["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert step["tokens"] == len(torch.cat(losses))
    trained = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).state_dict()
    before = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict()
    for name, weight in module.state_dict().items():
        moved, expected = trained[name] - before[name], weight - before[name]
        # The first update of Adam is the sign of the gradient, but for gradients close to 0.
        same = torch.isclose(moved, expected, atol=0.02 * rate)
        assert same.float().mean() > 0.98, name


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_an_ended_training_continues_to_the_same_weights(
    model: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--model", model, "--epochs", 4, "--batch-size", 3, "--save-every", 2, "--json")
    whole = lines(sft(dataset, tmp_path / "whole", *options))
    taken = SftRun._data
    out = tmp_path / "out"

    def fail(self: SftRun, name: str, step: int, examples: Any) -> Any:
        if step == 6:
            raise TrainerError("ended here")
        return taken(self, name, step, examples)

    monkeypatch.setattr(SftRun, "_data", fail)
    first = sft(dataset, out, *options)
    assert "ended here" in first.output
    assert not out.exists()
    monkeypatch.undo()
    other = sft(dataset, out, "--model", model, "--epochs", 5)
    assert other.exit_code == 2
    assert "out.unfinished is of a training with other data or settings" in other.output
    second = lines(sft(dataset, out, *options))
    assert [row["step"] for row in second] == list(range(5, 13))
    assert [row["loss"] for row in second] == [row["loss"] for row in whole[4:]]
    name = "model.safetensors"
    assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_two_at_once(model: Path, dataset: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "out.unfinished"
    unfinished.mkdir()
    descriptor = lock_file(unfinished / "lock")
    try:
        result = sft(dataset, tmp_path / "out", "--model", model)
    finally:
        os.close(descriptor)
    assert result.exit_code == 2
    assert f"process {os.getpid()} is writing" in result.output


@pytest.mark.timeout(300)
def test_the_best_episodes_of_a_run_are_learnt(tmp_path: Path) -> None:
    rewards: list[float] = []

    async def record() -> None:
        servers, order = servers_with("torch", tmp_path), random.Random(0)
        async with servers.running() as server:
            await start(server)
            for step in range(1, STEPS + 1):
                await batch(server, order)
                await until_step(server, step)
            store = server.service.store
            rewards.extend([r.reward or 0.0 for r in await store.episodes(state="ended")])

    asyncio.run(record())
    run_dir = tmp_path / "run"
    chosen = ("--set", "algorithm.learning_rate=3e-3", "--epochs", 4, "--json")
    steps = lines(sft(run_dir, tmp_path / "out", "--best", 0.3, *chosen))
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.1
    highest = sft(run_dir, tmp_path / "other", "--min-reward", max(rewards) + 1)
    assert highest.exit_code == 2
    assert f"the highest reward is {max(rewards):g}" in highest.output


def test_lora_is_trained_and_merged(model: Path, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lora = ("--set", "model.lora={rank=4, alpha=8}", "--set", "algorithm.learning_rate=1e-2")
    steps = lines(sft(dataset, out, "--model", model, "--epochs", 6, *lora, "--json"))
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert "lora" not in " ".join(AutoModelForCausalLM.from_pretrained(out).state_dict())


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("no object", "line 2: not a JSON object"),
        ({"text": "x"}, "row 2: expected the field messages"),
        ({"messages": "x"}, "row 2: expected the field messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no message of the role assistant"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "nothing before it"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "row 2: "),
        ({"messages": ["x"]}, "a message is not an object"),
        ({"prompt": "x"}, "row 2: expected the field messages"),
        ({"prompt": "", "completion": "x"}, "prompt is empty"),
        (
            {"messages": [asked("sky"), {"role": "assistant", "content": "a<|im_end|>b"}]},
            "that ends",
        ),
        ({"messages": [{**asked("sky"), "weight": "0"}]}, "it must be 0 or 1"),
    ],
)
def test_bad_rows_are_named(
    row: Any, words: str, model: Path, dataset: Path, tmp_path: Path
) -> None:
    good = json.loads(dataset.read_text().splitlines()[0])
    bad = written(tmp_path / "bad.jsonl", [good, row])
    result = sft(bad, tmp_path / "out", "--model", model)
    assert result.exit_code == 2
    assert words in result.output
    assert not list(tmp_path.glob("out*"))


def test_bad_options(model: Path, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    other = tmp_path / "data.txt"
    other.write_text("x")
    (tmp_path / "empty.jsonl").write_text("")
    late = ("--set", "algorithm.schedule=linear", "--set", "algorithm.warmup_steps=9")
    for arguments, words in (
        ((dataset, out), "needs the option --model"),
        ((other, out, "--model", model), "no reader 'txt' is installed"),
        ((tmp_path / "empty.jsonl", out, "--model", model), "has no conversations"),
        ((dataset, tmp_path, "--model", model), "exists: choose another directory"),
        ((dataset, tmp_path / "no" / "out", "--model", model), "does not exist"),
        ((dataset, out, "--model", model, "--trainer", "gone"), "gone"),
        ((dataset, out, "--model", model, "--set", "batch.tasks=3"), "expected PATH=VALUE"),
        ((dataset, out, "--model", model, "--set", "algorithm.epochs=3"), "has no meaning"),
        ((dataset, out, "--model", tmp_path), "has no tokenizer"),
        ((tmp_path, out), "is not a run directory"),
        (
            (dataset, out, "--model", model, "--set", "model.max_context=8"),
            "has more than the model's 8 tokens",
        ),
        (
            (dataset, out, "--model", model, *late),
            "greater than warmup_steps",
        ),
    ):
        result = sft(*arguments)
        assert result.exit_code != 0, arguments
        assert words in result.output, result.output
    assert not list(tmp_path.glob("out*"))


def test_long_conversations_are_left_out(model: Path, dataset: Path, tmp_path: Path) -> None:
    options = ("--model", model, "--set", "model.max_context=60")
    result = sft(dataset, tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    assert "left out 4 of 8" in result.stderr
    assert "step 1 of 1: loss" in result.stdout


def test_prompts_and_completions(model: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": "a b c", "completion": " d"},
        {"prompt": [asked("sky")], "completion": [{"role": "assistant", "content": "blue"}]},
    ]
    data = written(tmp_path / "pairs.jsonl", rows)
    (step,) = lines(sft(data, tmp_path / "out", "--model", model, "--json"))
    renderer = make_renderer(ModelConfig(path=str(model), renderer="qwen3"), model)
    tokens = len(renderer.encode(" d")) + 1
    assert step["tokens"] > tokens
