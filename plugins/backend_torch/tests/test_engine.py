"""The engine on tiny models: logprobs against plain forward passes, joining, sampling, failures."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
import torch
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.forward import CachedModel
from ajet_backend_torch.settings import TorchEngineSettings
from tiny_models import VOCAB, full_logprobs, load, write_model

from ajet_core.errors import (
    ConfigError,
    ContextLengthError,
    EngineError,
    ModelDirectoryError,
    RequestError,
    UnsupportedError,
)
from ajet_core.interfaces import (
    GenerateRequest,
    WeightUpdate,
)
from ajet_core.protocol import ModelConfig
from ajet_testing.suites import asking
from ajet_testing.suites.asking import Completion, make_request, until


def request(prompt: list[int], *, stream: bool = False, **sampling: object) -> GenerateRequest:
    """For 12 tokens unless it says otherwise."""
    return make_request(prompt, stream=stream, **{"max_tokens": 12, **sampling})


async def ask(engine: TorchEngine, prompt: list[int], **options: object) -> Completion:
    return await asking.ask(engine, prompt, **{"max_tokens": 12, **options})


def prompts(count: int, shortest: int = 5, longest: int = 60, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(VOCAB, size=rng.integers(shortest, longest)).tolist() for _ in range(count)
    ]


def assert_exact(
    module: torch.nn.Module, prompt: list[int], answer: Completion, t: float = 1.0
) -> None:
    ids = prompt + answer.ids
    expected = full_logprobs(module, ids, t)[len(prompt) - 1 :]
    chosen = expected.gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
    assert answer.ids
    assert (chosen - torch.tensor(answer.logprobs)).abs().max() <= 1e-4


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt_neox", "gemma", "gemma2"])
async def test_logprobs_are_the_models_own(kind, models, make_engine):
    engine = await make_engine(models(kind), max_requests=4)
    asked = prompts(9)
    answers = await asyncio.gather(
        *(ask(engine, p, max_tokens=5 + 3 * i) for i, p in enumerate(asked))
    )
    for i, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
        assert len(answer.ids) == 5 + 3 * i
        assert answer.reason == "length"
        assert_exact(load(models(kind)), prompt, answer)


async def test_requests_that_join_later_do_not_disturb(model_dir, make_engine):
    engine = await make_engine()
    module = load(model_dir)
    asked = prompts(6, seed=1)

    async def after(previous: asyncio.Event, prompt: list[int], mine: asyncio.Event) -> Completion:
        await previous.wait()
        answer = Completion()
        async for chunk in engine.generate(request(prompt, max_tokens=30, stream=True)):
            answer.add(chunk)
            if len(answer.ids) == 3:
                mine.set()
        return answer

    events = [asyncio.Event() for _ in range(7)]
    events[0].set()
    answers = await asyncio.gather(
        *(after(events[i], p, events[i + 1]) for i, p in enumerate(asked))
    )
    for prompt, answer in zip(asked, answers, strict=True):
        assert_exact(module, prompt, answer)


async def test_a_conversation_reuses_its_prefix(model_dir, make_engine):
    engine = await make_engine()
    history = prompts(1, 40, 41)[0]
    first = await ask(engine, history)
    longer = history + first.ids + [1, 2, 3]
    before = await engine.stats()
    second = await ask(engine, longer)
    after = await engine.stats()
    assert_exact(load(model_dir), longer, second)
    # All but the last sampled token, which was never fed to the model, and what is new.
    assert after.cached_tokens - before.cached_tokens == len(history) + len(first.ids) - 1


async def test_a_prefix_is_copied_from_a_running_request(model_dir, make_engine):
    engine = await make_engine(max_requests=3)
    shared = prompts(1, 50, 51)[0]
    running = engine.generate(request([*shared, 5], max_tokens=200, stream=True))
    await anext(running)
    answer = await ask(engine, [*shared, 6, 7])
    stats = await engine.stats()
    await running.aclose()
    assert stats.cached_tokens == len(shared)
    assert_exact(load(model_dir), [*shared, 6, 7], answer)


async def test_a_group_with_one_prompt_computes_it_once(model_dir, make_engine):
    engine = await make_engine()
    prompt = prompts(1, 80, 81)[0]
    await engine.pause()
    asked = [asyncio.create_task(ask(engine, prompt)) for _ in range(8)]
    await until(engine, lambda s: s.waiting == 8)
    await engine.resume()
    answers = await asyncio.gather(*asked)
    assert (await engine.stats()).cached_tokens == 7 * (len(prompt) - 1)
    for answer in answers:
        assert_exact(load(model_dir), prompt, answer)


async def test_an_identical_prompt_computes_its_last_token_again(model_dir, make_engine):
    engine = await make_engine(max_requests=1)
    prompt = prompts(1)[0]
    first = await ask(engine, prompt, temperature=0.0)
    second = await ask(engine, prompt, temperature=0.0)
    assert first.ids == second.ids
    assert_exact(load(model_dir), prompt, second)


async def test_long_prompts_are_prefilled_in_chunks(model_dir, make_engine):
    engine = await make_engine(prefill_token_budget=16)
    asked = prompts(5, 100, 300, seed=2)
    answers = await asyncio.gather(*(ask(engine, p) for p in asked))
    for prompt, answer in zip(asked, answers, strict=True):
        assert_exact(load(model_dir), prompt, answer)


async def test_more_requests_than_slots_all_end(model_dir, make_engine):
    engine = await make_engine(max_requests=2)
    asked = prompts(11, seed=3)
    answers = await asyncio.gather(*(ask(engine, p) for p in asked))
    for prompt, answer in zip(asked, answers, strict=True):
        assert_exact(load(model_dir), prompt, answer)
    stats = await engine.stats()
    assert (stats.running, stats.waiting, stats.requests) == (0, 0, 11)
    assert stats.sampled_tokens == 11 * 12
    assert stats.prompt_tokens == sum(map(len, asked))
    assert stats.forward_seconds > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_weights_that_change_in_mid_generation(stream, model_dir, make_engine, tmp_path):
    engine = await make_engine(max_requests=4)
    other = write_model(tmp_path / "other", seed=9)
    asked = prompts(4, seed=4)
    tasks = [asyncio.create_task(ask(engine, p, max_tokens=300, stream=stream)) for p in asked]
    await until(engine, lambda s: s.sampled_tokens >= 80)
    await engine.update_weights(WeightUpdate("safetensors_dir", 7, other))
    answers = await asyncio.gather(*tasks)
    modules = {0: load(model_dir), 7: load(other)}
    for prompt, answer in zip(asked, answers, strict=True):
        assert sorted(set(answer.versions)) == [0, 7]
        assert answer.versions == sorted(answer.versions)
        ids = prompt + answer.ids
        rows = {v: full_logprobs(module, ids)[len(prompt) - 1 :] for v, module in modules.items()}
        for i, (token, logprob) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
            assert abs(float(rows[answer.versions[i]][i, token]) - logprob) <= 1e-4
    if not stream:
        assert [len(answer.chunks) for answer in answers] == [2] * 4


async def test_nothing_cached_before_a_weight_update_is_used_after_it(make_engine, tmp_path):
    engine = await make_engine()
    other = write_model(tmp_path / "other", seed=9)
    prompt = prompts(1)[0]
    await ask(engine, prompt)
    await engine.update_weights(WeightUpdate("safetensors_dir", 1, other))
    before = (await engine.stats()).cached_tokens
    assert_exact(load(other), prompt, await ask(engine, prompt))
    assert (await engine.stats()).cached_tokens == before


async def test_a_bad_update_leaves_the_old_weights(model_dir, models, make_engine, tmp_path):
    engine = await make_engine()
    damaged = tmp_path / "damaged"
    write_model(damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for location in (str(damaged), models("llama"), str(tmp_path / "nowhere")):
        with pytest.raises(EngineError, match="weights"):
            await engine.update_weights(WeightUpdate("safetensors_dir", 1, location))
    with pytest.raises(EngineError, match="nccl"):
        await engine.update_weights(WeightUpdate("nccl", 1, ""))
    with pytest.raises(EngineError, match="shared"):
        await engine.update_weights(WeightUpdate("in_process", 1, "torch.model"))
    prompt = prompts(1)[0]
    answer = await ask(engine, prompt)
    assert set(answer.versions) == {0}
    assert_exact(load(model_dir), prompt, answer)


async def test_streaming_gives_every_token_as_it_is_made(make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    streamed = await ask(engine, prompt, stream=True, seed=1)
    at_once = await ask(engine, prompt, seed=1)
    assert [len(c.token_ids) for c in streamed.chunks] == [1] * 12
    assert len(at_once.chunks) == 1
    assert streamed.ids == at_once.ids


async def test_a_seeded_answer_goes_on_in_another_engine_as_it_would_have(make_engine):
    engine = await make_engine()
    asked = request(prompts(1)[0], seed=1)
    whole = await ask(engine, list(asked.prompt_ids), seed=1)
    rest = Completion()
    async for chunk in engine.generate(asked.continued(whole.ids[:5])):
        rest.add(chunk)
    assert whole.ids[:5] + rest.ids == whole.ids


async def test_closing_the_generator_frees_the_slot(make_engine):
    engine = await make_engine(max_requests=1)
    running = engine.generate(request([1, 2], max_tokens=400, stream=True))
    await anext(running)
    await running.aclose()
    answer = await ask(engine, [3, 4])
    assert len(answer.ids) == 12
    assert (await engine.stats()).running == 0


async def test_a_waiting_request_can_be_cancelled(make_engine):
    engine = await make_engine(max_requests=1)
    running = engine.generate(request([1, 2], max_tokens=400, stream=True))
    await anext(running)
    waiting = asyncio.create_task(ask(engine, [3]))
    await until(engine, lambda s: s.waiting == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(engine, lambda s: s.waiting == 0)
    await running.aclose()


async def test_a_stop_token_ends_and_is_included(make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    free = await ask(engine, prompt, temperature=0.0, max_tokens=20)
    stop = free.ids[4]
    answer = await ask(engine, prompt, temperature=0.0, max_tokens=20, stop_token_ids=(stop,))
    assert answer.ids == free.ids[: free.ids.index(stop) + 1]
    assert answer.reason == "stop"


async def test_one_token(make_engine):
    engine = await make_engine()
    answer = await ask(engine, [1], max_tokens=1)
    assert (len(answer.ids), answer.reason) == (1, "length")


async def test_greedy_takes_the_most_likely_token(model_dir, make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    answer = await ask(engine, prompt, temperature=0.0)
    expected = full_logprobs(load(model_dir), prompt + answer.ids)[len(prompt) - 1 :].argmax(-1)
    assert answer.ids == expected.tolist()
    assert_exact(load(model_dir), prompt, answer)


async def test_temperature_scales_the_logprobs(model_dir, make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    mixed = await asyncio.gather(
        *(ask(engine, prompt, temperature=t) for t in (0.5, 1.0, 1.7, 0.0))
    )
    for temperature, answer in zip((0.5, 1.0, 1.7, 1.0), mixed, strict=True):
        assert_exact(load(model_dir), prompt, answer, temperature)


async def test_a_seed_repeats_whatever_else_runs(make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    options = {"max_tokens": 40, "temperature": 0.8, "top_p": 0.9}
    alone = await ask(engine, prompt, seed=11, **options)
    others = [ask(engine, p, max_tokens=50) for p in prompts(9, seed=5)]
    among = (await asyncio.gather(ask(engine, prompt, seed=11, **options), *others))[0]
    other = await ask(engine, prompt, seed=12, **options)
    assert alone.ids == among.ids
    assert alone.ids != other.ids
    assert (await ask(engine, prompt, seed=-(2**70), max_tokens=2)).ids


async def test_unseeded_requests_differ(make_engine):
    engine = await make_engine()
    answers = await asyncio.gather(*(ask(engine, [1, 2, 3]) for _ in range(4)))
    assert len({tuple(answer.ids) for answer in answers}) == 4


async def test_top_p_and_top_k_never_leave_the_nucleus(model_dir, make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    expected = full_logprobs(load(model_dir), [*prompt, 0])[-1].exp()
    ordered, order = expected.sort(descending=True)
    inside = (ordered.cumsum(0) - ordered) < 0.4
    nucleus = set(order[inside].tolist())
    three = set(order[:3].tolist())
    both = set(order[:3][(ordered[:3].cumsum(0) - ordered[:3]) < 0.5 * ordered[:3].sum()].tolist())
    for options, allowed in (
        ({"top_p": 0.4}, nucleus),
        ({"top_k": 3}, three),
        ({"top_k": 3, "top_p": 0.5}, both),
        ({"top_p": 1e-9}, {int(order[0])}),
        ({"top_k": VOCAB + 5}, set(range(VOCAB))),
    ):
        asked = [ask(engine, prompt, max_tokens=1, **options) for _ in range(120)]
        # Rows without a cut in the same step.
        plain = [ask(engine, prompt, max_tokens=1) for _ in range(8)]
        answers = (await asyncio.gather(*asked, *plain))[:120]
        drawn = {answer.ids[0] for answer in answers}
        assert drawn <= allowed
        assert len(drawn) > len(allowed) * 0.4
        for answer in answers[:5]:
            assert_exact(load(model_dir), prompt, answer)


async def test_samples_follow_the_distribution(model_dir, make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    expected = full_logprobs(load(model_dir), [*prompt, 0])[-1].exp()
    count = 3000
    answers = await asyncio.gather(*(ask(engine, prompt, max_tokens=1) for _ in range(count)))
    seen = torch.bincount(torch.tensor([a.ids[0] for a in answers]), minlength=VOCAB)
    deviation = (seen - count * expected) / (count * expected * (1 - expected)).sqrt().clamp(min=1)
    assert deviation.abs().max() < 5


async def test_top_logprobs(model_dir, make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    wanted = [ask(engine, prompt, top_logprobs=k, stream=k == 2) for k in (5, 2, 0)]
    five, two, none = await asyncio.gather(*wanted)
    expected = full_logprobs(load(model_dir), prompt + five.ids)[len(prompt) - 1 :]
    assert [len(row) for row in five.top] == [5] * 12
    assert [len(row) for row in two.top] == [2] * 12
    assert none.chunks[0].top_logprobs is None
    for row, wanted_row in zip(five.top, expected, strict=True):
        values, ids = wanted_row.topk(5)
        assert [token for token, _ in row] == ids.tolist()
        assert np.allclose([value for _, value in row], values, atol=1e-4)


async def test_requests_that_cannot_be_served(make_engine):
    engine = await make_engine(kv_tokens=64)
    for error, options in (
        (ContextLengthError, {"prompt": [1] * 64}),
        (RequestError, {"prompt": []}),
        (RequestError, {"prompt": [VOCAB]}),
        (RequestError, {"prompt": [-1]}),
        (RequestError, {"prompt": [1], "stop_token_ids": (VOCAB,)}),
        (RequestError, {"prompt": [1], "max_tokens": 0}),
        (RequestError, {"prompt": [1], "top_p": 0.0}),
        (RequestError, {"prompt": [1], "temperature": -1.0}),
        (RequestError, {"prompt": [1], "temperature": math.nan}),
        (UnsupportedError, {"prompt": [1], "top_logprobs": 21}),
    ):
        with pytest.raises(error):
            await ask(engine, **options)
    assert len((await ask(engine, [1])).ids) == 12


async def test_a_full_slot_ends_with_length(model_dir, make_engine):
    engine = await make_engine(kv_tokens=64)
    prompt = prompts(1, 50, 51)[0]
    answer = await ask(engine, prompt, max_tokens=100)
    assert (len(answer.ids), answer.reason) == (14, "length")
    assert_exact(load(model_dir), prompt, answer)


async def test_pause_stops_and_resume_goes_on(model_dir, make_engine):
    engine = await make_engine()
    prompt = prompts(1)[0]
    running = asyncio.create_task(ask(engine, prompt, max_tokens=100))
    await until(engine, lambda s: s.sampled_tokens >= 3)
    await engine.pause()
    frozen = await engine.stats()
    joined = asyncio.create_task(ask(engine, [1, 2]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert (await engine.stats()).sampled_tokens == frozen.sampled_tokens
    await engine.resume()
    assert_exact(load(model_dir), prompt, await running)
    assert len((await joined).ids) == 12


async def test_close_aborts_what_runs_and_waits(make_engine):
    engine = await make_engine(max_requests=1)
    tasks = [asyncio.create_task(ask(engine, [i], max_tokens=400)) for i in (1, 2)]
    await until(engine, lambda s: s.sampled_tokens >= 3)
    await engine.close()
    running, waiting = await asyncio.gather(*tasks)
    assert running.reason == waiting.reason == "abort"
    assert running.ids
    assert waiting.ids == []
    with pytest.raises(EngineError, match="closed"):
        await ask(engine, [1])
    await engine.close()


async def test_a_failing_loop_fails_all_requests(make_engine, monkeypatch):
    engine = await make_engine(max_requests=2)
    calls = 0
    decode = CachedModel.decode

    def fail(self: CachedModel, *args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise RuntimeError("boom")
        return decode(self, *args)

    monkeypatch.setattr(CachedModel, "decode", fail)
    results = await asyncio.gather(*(ask(engine, [i]) for i in range(4)), return_exceptions=True)
    assert all(isinstance(r, EngineError) and "boom" in str(r) for r in results)
    for action in (lambda: ask(engine, [1]), engine.stats, engine.pause):
        with pytest.raises(EngineError, match="boom"):
            await action()


async def test_logits_that_are_not_finite_fail_the_request_alone(
    model_dir, make_engine, monkeypatch
):
    engine = await make_engine()
    decode = CachedModel.decode

    def poison(
        self: CachedModel, rows: np.ndarray, ids: np.ndarray, at: np.ndarray
    ) -> torch.Tensor:
        logits = decode(self, rows, ids, at)
        logits[torch.from_numpy(at >= 30)] = math.nan
        return logits

    monkeypatch.setattr(CachedModel, "decode", poison)
    sick, well = await asyncio.gather(
        ask(engine, [1] * 25), ask(engine, [2] * 5), return_exceptions=True
    )
    assert isinstance(sick, EngineError)
    assert "not finite" in str(sick)
    assert isinstance(well, Completion)
    assert_exact(load(model_dir), [2] * 5, well)


async def test_weights_that_are_not_finite_do_not_poison_the_next(model_dir, make_engine, tmp_path):
    engine = await make_engine()
    module = load(model_dir)
    with torch.no_grad():
        next(module.parameters()).fill_(math.nan)
    module.save_pretrained(tmp_path / "nan")
    await engine.update_weights(WeightUpdate("safetensors_dir", 1, str(tmp_path / "nan")))
    with pytest.raises(EngineError, match="not finite"):
        await ask(engine, [1, 2])
    await engine.update_weights(WeightUpdate("safetensors_dir", 2, model_dir))
    asked = prompts(3)
    for prompt, answer in zip(
        asked, await asyncio.gather(*(ask(engine, p) for p in asked)), strict=True
    ):
        assert_exact(load(model_dir), prompt, answer)


async def test_a_sliding_window_is_refused_unless_the_context_fits(models, make_engine):
    with pytest.raises(ModelDirectoryError, match="max_context to at most 64"):
        await make_engine(models("mistral"))
    engine = await make_engine(models("mistral"), max_context=64)
    prompt = prompts(1, 20, 21)[0]
    assert_exact(load(models("mistral")), prompt, await ask(engine, prompt, max_tokens=40))


async def test_a_stateful_model_is_refused(make_engine, tmp_path):
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4)
    MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    with pytest.raises(ModelDirectoryError, match="cannot serve MambaForCausalLM"):
        await make_engine(str(tmp_path / "mamba"), max_context=64)


async def test_a_context_beyond_the_model_is_refused(make_engine):
    with pytest.raises(ConfigError, match="512 positions"):
        await make_engine(max_context=1000)


async def test_info_names_context_and_vocabulary(model_dir, context):
    engine = TorchEngine(TorchEngineSettings(device="cpu", kv_tokens=100), context)
    info = await engine.start(ModelConfig(path=model_dir))
    await engine.close()
    assert (info.max_context, info.vocab_size) == (100, VOCAB)


def test_slots_grow_with_what_they_hold(model_dir):
    cached = CachedModel(load(model_dir), slots=2, capacity=512)
    assert cached.cache.nbytes == 0
    tokens = np.zeros((1, 512), np.int32)
    with torch.no_grad():
        cached.prefill(np.array([0]), tokens, np.array([0]), np.array([10]))
        small = cached.cache.nbytes
        cached.prefill(np.array([0]), tokens, np.array([10]), np.array([400]))
    assert small < cached.cache.nbytes


async def test_half_precision(model_dir, context):
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(ModelConfig(path=model_dir, dtype="bfloat16"))
    prompt = prompts(1)[0]
    answer = await ask(engine, prompt)
    await engine.close()
    expected = full_logprobs(load(model_dir).bfloat16(), prompt + answer.ids)[len(prompt) - 1 :]
    chosen = expected.gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
    assert (chosen - torch.tensor(answer.logprobs)).abs().max() < 0.2


async def test_an_engine_starts_once(make_engine, model_dir):
    engine = await make_engine()
    with pytest.raises(EngineError, match="already"):
        await engine.start(ModelConfig(path=model_dir))


async def test_an_engine_must_be_started(context):
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    with pytest.raises(EngineError, match="not started"):
        await engine.stats()


async def test_commands_given_while_it_closes_are_answered(make_engine):
    engine = await make_engine()
    loop = engine._running_loop()
    results = await asyncio.gather(
        engine.close(), loop.pause(), ask(engine, [1]), return_exceptions=True
    )
    with pytest.raises(EngineError, match="closed"):
        await loop.resume()
    assert results[0] is None
    assert isinstance(results[2], EngineError)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
async def test_cuda(model_dir, context):
    engine = TorchEngine(TorchEngineSettings(device="cuda"), context)
    await engine.start(ModelConfig(path=model_dir, dtype="float32"))
    asked = prompts(5)
    answers = await asyncio.gather(*(ask(engine, p, top_p=0.9) for p in asked))
    await engine.close()
    for prompt, answer in zip(asked, answers, strict=True):
        assert_exact(load(model_dir), prompt, answer)
