"""A server that runs already, reached at a URL."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from ajet_engine_vllm.engine import VllmEngine
from safetensors.torch import load_file, save_file
from tiny_vllm import CONTEXT, make_engine

from ajet_core.errors import EngineError
from ajet_core.interfaces import ModelServers, WeightUpdate
from ajet_core.protocol import ModelConfig
from ajet_testing.served_models import Models
from ajet_testing.served_ports import address_of, at_port
from ajet_testing.suites.asking import ask, until

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


def url_of(engine: VllmEngine) -> AbstractAsyncContextManager[str]:
    """The engine's server at a port."""
    return at_port(address_of(engine).socket)


async def test_it_is_given_weights_answers_and_is_left_running(
    shared_engine: VllmEngine, models: Models, tmp_path: Path
) -> None:
    await shared_engine.update_weights(WeightUpdate("safetensors_dir", 10**6, models.paths[1]))
    async with url_of(shared_engine) as url:
        engine = make_engine(tmp_path, ModelServers(urls=(url,), api_key="secret"))
        await engine.start(ModelConfig(path=models.paths[0], dtype="float32"))
        prompt = [4, 5, 6]
        answer = await ask(engine, prompt, top_p=0.8)
        rows = models.logprobs(0, prompt + answer.ids)[len(prompt) - 1 :]
        for token, logprob, row in zip(answer.ids, answer.logprobs, rows, strict=True):
            assert abs(logprob - row[token]) <= 1e-4
        # Counters begin with the engine, not with the server.
        assert (await engine.stats()).sampled_tokens == 8
        tasks = [asyncio.create_task(ask(engine, [i], max_tokens=CONTEXT)) for i in range(3)]
        await until(engine, lambda stats: stats.sampled_tokens > 10)
        await engine.close()
        assert {answer.reason for answer in await asyncio.gather(*tasks)} == {"abort"}
    assert (await ask(shared_engine, prompt)).ids


async def test_a_model_that_is_sure_of_its_next_token_is_refused_nothing(
    shared_engine: VllmEngine, models: Models, tmp_path: Path
) -> None:
    """The logprob of the token is 0 then, as it would be of all that top-k leaves."""
    sure = tmp_path / "sure"
    shutil.copytree(models.paths[0], sure)
    weights = load_file(sure / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 300
    save_file(weights, sure / "model.safetensors", {"format": "pt"})
    await shared_engine.update_weights(WeightUpdate("safetensors_dir", 10**6, str(sure)))
    async with url_of(shared_engine) as url:
        engine = make_engine(tmp_path, ModelServers(urls=(url,)))
        await engine.start(ModelConfig(path=str(sure), dtype="float32"))
        assert (await ask(engine, [1, 2, 3], max_tokens=1)).logprobs == [0.0]
        cut = await ask(engine, [1, 2, 3], top_k=3, top_p=0.9, logit_bias=((7, -100.0),))
        assert len(cut.ids) == 8
        await engine.close()


async def test_it_sleeps_without_having_been_started_here(
    shared_engine: VllmEngine, models: Models, tmp_path: Path
) -> None:
    async with url_of(shared_engine) as url:
        engine = make_engine(tmp_path, ModelServers(urls=(url,)), sleep=True)
        await engine.start(ModelConfig(path=models.paths[1], dtype="float32"))
        await engine.sleep()
        task = asyncio.create_task(ask(engine, [7] * 200))
        await until(engine, lambda stats: stats.waiting == 1)
        await engine.wake()
        assert len((await task).ids) == 8
        await engine.close()


async def test_one_that_is_not_there_is_waited_for_and_named(
    models: Models, tmp_path: Path
) -> None:
    servers = ModelServers(urls=("http://127.0.0.1:9",))
    engine = make_engine(tmp_path, servers, boot_timeout_seconds=0.1)
    with pytest.raises(
        EngineError, match=r"no model server responded at http://127.0.0.1:9 within"
    ):
        await engine.start(ModelConfig(path=models.paths[0]))
