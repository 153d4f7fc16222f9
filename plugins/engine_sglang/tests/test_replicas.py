"""Two real servers, short of room for keys and values, that are killed or hang in all situations: nothing is lost."""

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
from ajet_engine_sglang.engine import SglangEngine
from conftest import assert_exact, make_engine, model_config
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModelForCausalLM

from ajet_core.collective import WeightSender
from ajet_core.errors import EngineError
from ajet_core.interfaces import ModelServers, WeightUpdate
from ajet_core.testing.asking import Answer, ask
from tests.served_models import VOCAB, Models

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1800),
]
# Four requests need more; SGLang sends some back to its queue then.
KV_TOKENS = 1024


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SglangEngine]:
    with pytest.MonkeyPatch.context() as patch:
        # Seconds after which SGLang answers a health probe with no, and between two of ours.
        patch.setenv("SGLANG_HEALTH_CHECK_TIMEOUT", "5")
        # It admits requests as if they would all be short.
        patch.setenv("SGLANG_INIT_NEW_TOKEN_RATIO", "0.1")
        patch.setattr("ajet_core.served.watch.LOOK_SECONDS", 3.0)
        engine = make_engine(
            tmp_path_factory.mktemp("run"),
            ModelServers(python=python),
            replicas=2,
            kv_tokens=KV_TOKENS,
        )
        await engine.start(model_config(models.paths[0]))
        yield engine
        await engine.close()


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(child) for child in found.split()]


def server_pid(engine: SglangEngine, number: int) -> int:
    """Of SGLang's first process, below the guard."""
    launched = engine._replicas[number].launched
    assert launched is not None
    assert launched.process is not None
    (pid,) = children(launched.process.pid)
    return pid


def scheduler_pid(engine: SglangEngine, number: int) -> int:
    """Of the process that computes."""
    return next(
        pid
        for pid in children(server_pid(engine, number))
        if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


async def all_up(engine: SglangEngine) -> None:
    while not all(one.up for one in engine._replicas):
        assert not any(one.failure for one in engine._replicas)
        await asyncio.sleep(0.1)


async def begin(
    engine: SglangEngine, prompts: list[list[int]], tokens: int, **options: object
) -> list[asyncio.Task[Answer]]:
    """Requests that have sampled something, at both servers."""
    await all_up(engine)
    tasks = [asyncio.create_task(ask(engine, p, max_tokens=tokens, **options)) for p in prompts]
    # Asking the servers how far they are might take longer than the requests.
    while not all(any(f.heard for f in one.flights) for one in engine._replicas):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0)
    return tasks


async def test_both_are_used_and_draw_other_numbers(engine: SglangEngine) -> None:
    answers = await asyncio.gather(*(ask(engine, [1, 2, 3], max_tokens=40) for _ in range(16)))
    assert len({tuple(answer.ids) for answer in answers}) == 16
    await engine.stats()
    assert all(one.totals.counter("sampled_tokens") > 0 for one in engine._replicas)


async def test_what_the_servers_measure_is_told_of_each(engine: SglangEngine) -> None:
    await asyncio.gather(*(ask(engine, [4, 5, i], max_tokens=8) for i in range(16)))
    samples = [
        sample
        for family in text_string_to_metric_families(await engine.metrics())
        for sample in family.samples
        if sample.name == "sglang:generation_tokens_total"
    ]
    assert {sample.labels["replica"] for sample in samples} == {"0", "1"}
    assert all(sample.value > 0 for sample in samples)


async def test_requests_that_wait_for_room_are_ended_by_an_update_and_go_on(
    engine: SglangEngine, models: Models
) -> None:
    log = engine.context.run_dir / "logs" / "sglang-0.log"
    said = log.stat().st_size
    prompts = [[i, 5, 6] for i in range(16)]
    free = await asyncio.gather(*(ask(engine, p, max_tokens=400, temperature=0) for p in prompts))
    never = next(i for i in range(VOCAB) if not any(i in answer.ids for answer in free))
    # Of what may stop it does not know how long it gets.
    tasks = await begin(engine, prompts, 400, temperature=0, stop_token_ids=(never,))
    while b"#retracted_reqs" not in log.read_bytes()[said:]:
        assert not all(task.done() for task in tasks)
        await asyncio.sleep(0.02)
    await engine.update_weights(WeightUpdate("safetensors_dir", 1, models.paths[0]))
    answers = await asyncio.gather(*tasks)
    assert any(len(set(answer.versions)) == 2 for answer in answers)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer.ids) == 400
        assert_exact(models, 0, prompt, answer)


async def test_one_that_is_killed_in_the_middle_of_calls_and_again_while_it_boots(
    engine: SglangEngine, models: Models
) -> None:
    prompts = [[i, 5, 7] for i in range(12)]
    tasks = await begin(engine, prompts, 300)
    lives = engine._replicas[0].lives
    log = engine.context.run_dir / "logs" / "sglang-0.log"
    others = set(children(os.getpid()))
    os.kill(server_pid(engine, 0), signal.SIGKILL)
    while engine._replicas[0].up:
        await asyncio.sleep(0.01)
    said = log.stat().st_size
    for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
        assert len(answer.ids) == 300
        assert_exact(models, 0, prompt, answer)
    # The next one has begun to boot when it says something.
    while log.stat().st_size == said:
        await asyncio.sleep(0.05)
    (guard,) = set(children(os.getpid())) - others
    (booting,) = children(guard)
    os.kill(booting, signal.SIGKILL)
    await all_up(engine)
    assert engine._replicas[0].lives == lives + 1


async def test_a_scheduler_that_is_killed_while_weights_change(
    engine: SglangEngine, models: Models
) -> None:
    prompts = [[i, 9] for i in range(8)]
    tasks = await begin(engine, prompts, 200)
    victim = scheduler_pid(engine, 1)
    updating = asyncio.create_task(
        engine.update_weights(WeightUpdate("safetensors_dir", 2, models.paths[1]))
    )
    while not engine._updating:
        await asyncio.sleep(0)
    os.kill(victim, signal.SIGKILL)
    await updating
    for answer in await asyncio.gather(*tasks):
        assert len(answer.ids) == 200
        assert answer.versions == sorted(answer.versions)
        assert set(answer.versions) <= {1, 2}
    await all_up(engine)
    asked = [[i] for i in range(12)]
    for prompt, answer in zip(
        asked, await asyncio.gather(*(ask(engine, p) for p in asked)), strict=True
    ):
        assert set(answer.versions) == {2}
        assert_exact(models, 1, prompt, answer)


async def test_a_scheduler_that_hangs_is_noticed_and_told_of(
    engine: SglangEngine, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [[i, 11] for i in range(8)]
    tasks = await begin(engine, prompts, 200)
    lives = engine._replicas[0].lives
    os.kill(scheduler_pid(engine, 0), signal.SIGSTOP)
    for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
        assert len(answer.ids) == 200
        assert_exact(models, 1, prompt, answer)
    assert "server 0 of sglang is replaced: it has sent nothing for its" in caplog.text
    await all_up(engine)
    assert engine._replicas[0].lives == lives + 1


def module_of(models: Models, which: int) -> Any:
    return AutoModelForCausalLM.from_pretrained(models.paths[which], dtype=torch.float32)


async def assert_served(engine: SglangEngine, models: Models, which: int, version: int) -> None:
    """All servers serve these weights, as this version."""
    await all_up(engine)
    prompts = [[i, 4, 8] for i in range(12)]
    answers = await asyncio.gather(*(ask(engine, p, max_tokens=16) for p in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert set(answer.versions) == {version}
        assert_exact(models, which, prompt, answer)


async def test_weights_that_are_broadcast(engine: SglangEngine, models: Models) -> None:
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
    engine: SglangEngine, models: Models, caplog: pytest.LogCaptureFixture
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
