"""Two real servers that are killed in all situations: nothing is lost, and nobody but the log hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from ajet_engine_vllm.engine import VllmEngine
from conftest import Models, make_engine
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModelForCausalLM

from ajet_core.collective import WeightSender
from ajet_core.errors import EngineError
from ajet_core.interfaces import ModelServers, WeightUpdate
from ajet_core.protocol.run import ModelConfig
from ajet_core.testing.asking import Answer, ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1800),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    engine = make_engine(tmp_path_factory.mktemp("run"), ModelServers(python=python), replicas=2)
    await engine.start(ModelConfig(path=models.paths[0], dtype="float32"))
    yield engine
    await engine.close()


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(child) for child in found.split()]


def server_pid(engine: VllmEngine, number: int) -> int:
    """Of vLLM itself, below the guard."""
    launched = engine._replicas[number].launched
    assert launched is not None
    assert launched.process is not None
    return children(launched.process.pid)[0]


async def all_up(engine: VllmEngine) -> None:
    while not all(one.up for one in engine._replicas):
        assert not any(one.failure for one in engine._replicas)
        await asyncio.sleep(0.1)


async def begin(engine: VllmEngine, prompts: list[list[int]]) -> list[asyncio.Task[Answer]]:
    """Long requests that have sampled something, at both servers."""
    tasks = [asyncio.create_task(ask(engine, p, max_tokens=1500)) for p in prompts]
    # Asking the servers how far they are might take longer than the requests.
    while not all(any(f.heard for f in one.flights) for one in engine._replicas):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0)
    return tasks


def assert_exact(models: Models, which: int, prompt: list[int], answer: Answer) -> None:
    rows = models.logprobs(which, prompt + answer.ids)[len(prompt) - 1 :]
    for token, logprob, row in zip(answer.ids, answer.logprobs, rows, strict=True):
        assert abs(logprob - row[token]) <= 1e-4


async def test_both_are_used_and_draw_other_numbers(engine: VllmEngine) -> None:
    answers = await asyncio.gather(*(ask(engine, [1, 2, 3], max_tokens=40) for _ in range(16)))
    assert len({tuple(answer.ids) for answer in answers}) == 16
    await engine.stats()
    assert all(one.totals.counter("sampled_tokens") > 0 for one in engine._replicas)


async def test_what_the_servers_measure_is_told_of_each(engine: VllmEngine) -> None:
    await asyncio.gather(*(ask(engine, [4, 5, i], max_tokens=8) for i in range(16)))
    samples = [
        sample
        for family in text_string_to_metric_families(await engine.metrics())
        for sample in family.samples
        if sample.name == "vllm:generation_tokens_total"
    ]
    assert {sample.labels["replica"] for sample in samples} == {"0", "1"}
    assert all(sample.value > 0 for sample in samples)


async def test_one_that_is_killed_in_the_middle_of_calls_and_again_while_it_boots(
    engine: VllmEngine, models: Models
) -> None:
    prompts = [[i, 5, 7] for i in range(12)]
    tasks = await begin(engine, prompts)
    sockets = set(engine.socket_directory().glob("*.sock"))
    others = set(children(os.getpid()))
    os.kill(server_pid(engine, 0), signal.SIGKILL)
    for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
        assert len(answer.ids) == 1500
        assert_exact(models, 0, prompt, answer)
    # The next one listens, and leaves its socket behind, long before it answers.
    while not set(engine.socket_directory().glob("*.sock")) - sockets:
        await asyncio.sleep(0.05)
    (guard,) = set(children(os.getpid())) - others
    (booting,) = children(guard)
    os.kill(booting, signal.SIGKILL)
    await all_up(engine)
    assert engine._replicas[0].lives == 2


async def test_one_that_is_killed_while_weights_change(engine: VllmEngine, models: Models) -> None:
    await all_up(engine)
    prompts = [[i, 9] for i in range(8)]
    tasks = await begin(engine, prompts)
    victim = server_pid(engine, 1)
    updating = asyncio.create_task(
        engine.update_weights(WeightUpdate("safetensors_dir", 1, models.paths[1]))
    )
    while not engine._updating:
        await asyncio.sleep(0)
    os.kill(victim, signal.SIGKILL)
    await updating
    for answer in await asyncio.gather(*tasks):
        assert len(answer.ids) == 1500
        assert answer.versions == sorted(answer.versions)
        assert set(answer.versions) <= {0, 1}
    await all_up(engine)
    asked = [[i] for i in range(12)]
    for prompt, answer in zip(
        asked, await asyncio.gather(*(ask(engine, p) for p in asked)), strict=True
    ):
        assert set(answer.versions) == {1}
        assert_exact(models, 1, prompt, answer)


def module_of(models: Models, which: int) -> Any:
    return AutoModelForCausalLM.from_pretrained(models.paths[which], dtype=torch.float32)


async def assert_served(engine: VllmEngine, models: Models, which: int, version: int) -> None:
    """All servers serve these weights, as this version."""
    await all_up(engine)
    prompts = [[i, 4, 8] for i in range(12)]
    answers = await asyncio.gather(*(ask(engine, p, max_tokens=16) for p in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert set(answer.versions) == {version}
        assert_exact(models, which, prompt, answer)


async def test_weights_that_are_broadcast(engine: VllmEngine, models: Models) -> None:
    await all_up(engine)
    sender = WeightSender()
    try:
        for version, which in ((10, 0), (11, 1)):
            await engine.update_weights(sender.publish(module_of(models, which), version))
            await assert_served(engine, models, which, version)
        other = AutoModelForCausalLM.from_pretrained(models.other)
        with pytest.raises(EngineError, match="of another model"):
            await engine.update_weights(sender.publish(other, 12))
        await assert_served(engine, models, 1, 11)

        # One dies while it receives; the next one joins the sender by itself.
        victim = server_pid(engine, 1)
        update = sender.publish(module_of(models, 0), 13)
        updating = asyncio.create_task(engine.update_weights(update))
        while not engine._updating:
            await asyncio.sleep(0)
        os.kill(victim, signal.SIGKILL)
        await updating
        await assert_served(engine, models, 0, 13)
    finally:
        await asyncio.to_thread(sender.close)


async def test_a_server_that_comes_up_without_a_sender_waits_for_the_next_one(
    engine: VllmEngine, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    sender = WeightSender()
    await engine.update_weights(sender.publish(module_of(models, 1), 20))
    await asyncio.to_thread(sender.close)
    os.kill(server_pid(engine, 0), signal.SIGKILL)
    while "waits for weights of a new trainer" not in caplog.text:
        assert not any(one.failure for one in engine._replicas)
        await asyncio.sleep(0.1)
    # The other one serves what it has.
    answer = await ask(engine, [1, 2], max_tokens=8)
    assert set(answer.versions) == {20}
    assert_exact(models, 1, [1, 2], answer)
    following = WeightSender()
    try:
        await engine.update_weights(following.publish(module_of(models, 0), 21))
        await assert_served(engine, models, 0, 21)
    finally:
        await asyncio.to_thread(following.close)
