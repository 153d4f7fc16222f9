"""Tokens that are drawn from something else than the policy; what is said of them is the policy's nevertheless."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings
from conftest import full_logprobs, load
from test_engine import ask, assert_exact, request
from transformers import AutoModelForCausalLM, Qwen2Config

from ajet_core.errors import RequestError, UnsupportedError
from ajet_core.interfaces import Engine, WorkerContext
from ajet_core.protocol.run import ModelConfig
from ajet_core.testing.tokenizers import renderer_for, tokenizer_for

WORDS = renderer_for("qwen3")
SCHEMA = {
    "type": "object",
    "properties": {"way": {"enum": ["up", "down"]}, "steps": {"type": "integer", "maximum": 9}},
    "required": ["way", "steps"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = f"start: %json {json.dumps(SCHEMA)}"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model with a real tokenizer."""
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(5)
    config = Qwen2Config(
        vocab_size=600,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    tokenizer_for("qwen3")._backend.save(str(path / "tokenizer.json"))
    return str(path)


@pytest.fixture
async def engine(model_dir: str, tmp_path: Path):
    engine = TorchEngine(
        TorchEngineSettings(device="cpu", max_requests=8), WorkerContext(run_dir=tmp_path, seed=3)
    )
    await engine.start(ModelConfig(path=model_dir, dtype="float32"))
    yield engine
    await engine.close()


async def test_a_bias_decides_and_the_logprobs_are_the_policys(engine: Engine, model_dir: str):
    prompt = [5, 6, 7]
    answer = await ask(engine, prompt, logit_bias=((42, 80.0),), max_tokens=5)
    assert answer.ids == [42] * 5
    assert_exact(load(model_dir), prompt, answer)
    never = [await ask(engine, prompt, logit_bias=((i, -100.0),), temperature=0) for i in (1, 2)]
    plain = await ask(engine, prompt, temperature=0)
    assert [answer.ids for answer in never] == [plain.ids] * 2


async def test_penalties_are_taken_off_by_how_often_a_token_came(engine: Engine, model_dir: str):
    module, prompt = load(model_dir), [5, 6, 7]
    answer = await ask(
        engine, prompt, temperature=0, frequency_penalty=1.5, presence_penalty=1.0, max_tokens=20
    )
    ids = list(prompt)
    counts = torch.zeros(600)
    for token in answer.ids:
        with torch.no_grad():
            logits = module(torch.tensor([ids])).logits[0, -1].float()
        assert token == int((logits - 1.5 * counts - 1.0 * (counts > 0)).argmax())
        counts[token] += 1
        ids.append(token)
    assert_exact(module, prompt, answer)
    assert answer.ids != (await ask(engine, prompt, temperature=0, max_tokens=20)).ids


async def test_a_grammar_is_kept_at_every_temperature(engine: Engine, model_dir: str):
    module, stops = load(model_dir), WORDS.stop_token_ids
    settings = {"grammar": GRAMMAR, "stop_token_ids": stops, "max_tokens": 60}
    prompts = [[i, 9] for i in range(12)]
    answers = await asyncio.gather(
        *(ask(engine, p, temperature=0.5 * (i % 4), **settings) for i, p in enumerate(prompts))
    )
    said = set()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.reason == "stop"
        assert answer.ids[-1] in stops
        value = json.loads(WORDS.decode(answer.ids[:-1]))
        assert value["way"] in ("up", "down")
        assert value["steps"] <= 9
        said.add(value["way"])
        if prompt[0] % 4 == 2:
            assert_exact(module, prompt, answer)
    assert said == {"up", "down"}


async def test_others_in_the_batch_are_not_shaped(engine: Engine, model_dir: str):
    stops = WORDS.stop_token_ids
    alone = await ask(engine, [3, 4], seed=7, max_tokens=30)
    together, *_ = await asyncio.gather(
        ask(engine, [3, 4], seed=7, max_tokens=30),
        ask(engine, [8], grammar=GRAMMAR, stop_token_ids=stops, max_tokens=60),
        ask(engine, [9], logit_bias=((42, 90.0),), top_p=0.5, max_tokens=30),
    )
    assert together.ids == alone.ids
    assert full_logprobs(load(model_dir), [3, 4, *alone.ids]) is not None


async def test_top_k_and_top_p_cut_what_is_shaped(engine: Engine):
    answer = await ask(engine, [5], logit_bias=((42, 80.0), (43, 80.0)), top_k=1, max_tokens=8)
    assert set(answer.ids) <= {42, 43}


@pytest.mark.parametrize(
    ("sampling", "error", "named"),
    [
        ({"grammar": "start: %json {", "stop_token_ids": (2,)}, RequestError, "cannot be enforced"),
        (
            {"grammar": 'start: %json {"type": "strange"}', "stop_token_ids": (2,)},
            RequestError,
            "cannot be enforced",
        ),
        ({"grammar": GRAMMAR}, UnsupportedError, "needs a stop token"),
        ({"logit_bias": ((600, 1.0),)}, RequestError, "logit_bias"),
    ],
)
async def test_what_cannot_be_done_is_refused(engine: Engine, sampling, error, named):
    with pytest.raises(error, match=named):
        async for _ in engine.generate(request([1], **sampling)):
            pass
    assert (await ask(engine, [1])).ids


async def test_a_model_without_a_tokenizer_has_no_grammars(models, context):
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(ModelConfig(path=models("qwen2")))
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json is missing"):
        async for _ in engine.generate(request([1], grammar=GRAMMAR, stop_token_ids=(2,))):
            pass
    await engine.close()
