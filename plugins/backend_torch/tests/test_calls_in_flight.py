"""Calls during new weights and during the death of the engine's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from test_engine import prompts
from tiny_models import SIZES, VOCAB, full_logprobs, load
from transformers import AutoModelForCausalLM, Qwen2Config

from ajet_core.interfaces import GenerateRequest, SamplingParams, WeightUpdate
from ajet_core.protocol import AlgorithmConfig, ModelConfig, ServerState
from ajet_server.gateway.engine_gate import EngineGate
from ajet_server.observe.events import EventLog
from ajet_server.state import StateBoard
from ajet_server.workers.codec import BootPlan, ComponentPlan
from ajet_server.workers.process import WorkerProcess
from ajet_server.workers.remote import RemoteEngine
from ajet_testing.ascii_tokenizer import ascii_text, write_ascii_tokenizer
from ajet_testing.suites.asking import Completion

CALLS = 4
# No call comes near it while the engine lives.
CONTEXT = 32_768
BOOT_SECONDS = 110.0
ENOUGH = 8
STOP = 3


@pytest.fixture
def versions(tmp_path: Path) -> list[str]:
    """The directories of the weights of three policy versions."""
    sizes = {**SIZES, "max_position_embeddings": CONTEXT}
    found = []
    for version in range(3):
        torch.manual_seed(version)
        config = Qwen2Config(**sizes, num_key_value_heads=2, tie_word_embeddings=True)
        path = tmp_path / f"v{version}"
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
        found.append(str(path))
    return found


def engine_of(worker: WorkerProcess) -> RemoteEngine:
    return RemoteEngine(worker.connection, "worker")


class Engines:
    """Worker processes with the torch engine, one after the other, behind one gate."""

    def __init__(self, directory: Path, model: str) -> None:
        board = StateBoard(EventLog(time.time), time.monotonic)
        board.set(ServerState.ROLLING)
        self.gate = EngineGate(board, deadline=BOOT_SECONDS)
        self._directory, self._model = directory, model

    @contextlib.asynccontextmanager
    async def serving(self, update: WeightUpdate | None = None) -> AsyncIterator[WorkerProcess]:
        """An engine with the weights of `update`, or those of the model, to which calls go."""
        engine = "ajet_backend_torch"
        plan = BootPlan(
            run_dir=str(self._directory),
            seed=0,
            model=ModelConfig(path=self._model),
            algorithm=AlgorithmConfig(),
            engine=ComponentPlan(
                "torch",
                f"{engine}.engine:TorchEngine",
                f"{engine}.settings:TorchEngineSettings",
                {"device": "cpu"},
            ),
            trainer=None,
            checkpoint=None,
        )
        worker = await WorkerProcess.spawn(self._directory / "worker.log")
        try:
            await worker.boot(plan, BOOT_SECONDS)
            if update is not None:
                await engine_of(worker).update_weights(update)
            self.gate.open(engine_of(worker))
            yield worker
        finally:
            await worker.close(grace=0.0)


class Calls:
    """Calls that go on until the context ends."""

    def __init__(self, gate: EngineGate) -> None:
        self.prompts = prompts(CALLS)
        self.answers = [Completion() for _ in self.prompts]
        self._gate = gate
        self._more = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(self._call(f"r{i}", prompt, answer))
            for i, (prompt, answer) in enumerate(zip(self.prompts, self.answers, strict=True))
        ]
        try:
            yield
            assert not any(task.done() for task in tasks), "a call ended before it was to"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, name: str, prompt: list[int], answer: Completion) -> None:
        sampling = SamplingParams(max_tokens=CONTEXT - len(prompt))
        async for chunk in self._gate.generate(
            GenerateRequest(name, prompt, sampling, stream=True)
        ):
            answer.add(chunk)
            self._more.set()

    async def until_each_has(self, version: int) -> None:
        """Each call has some tokens of a version."""
        while not all(answer.versions.count(version) >= ENOUGH for answer in self.answers):
            self._more.clear()
            await self._more.wait()

    def assert_exact(self, versions: list[str]) -> None:
        """Each token's logprob is the model's own, with the weights that its version says."""
        models = [load(path) for path in versions]
        for prompt, answer in zip(self.prompts, self.answers, strict=True):
            assert answer.versions == sorted(answer.versions)
            ids = torch.tensor(answer.ids)[:, None]
            rows = [full_logprobs(m, prompt + answer.ids)[len(prompt) - 1 :] for m in models]
            chosen = torch.stack([row.gather(1, ids)[:, 0] for row in rows])
            expected = chosen[torch.tensor(answer.versions), torch.arange(len(answer.ids))]
            assert (expected - torch.tensor(answer.logprobs)).abs().max() <= 1e-4


def update(versions: list[str], version: int) -> WeightUpdate:
    return WeightUpdate("safetensors_dir", version, versions[version])


async def test_calls_go_on_through_weights_and_a_killed_engine_exactly(versions, tmp_path):
    engines = Engines(tmp_path, versions[0])
    calls = Calls(engines.gate)
    async with calls.running():
        async with engines.serving() as worker:
            await calls.until_each_has(0)
            # Nothing is paused: the weights change between two tokens.
            await engine_of(worker).update_weights(update(versions, 1))
            await calls.until_each_has(1)
            os.kill(worker.pid, signal.SIGKILL)
            await worker.died
        # The next one comes with newer weights, as after a step that was trained meanwhile.
        async with engines.serving(update(versions, 2)):
            await calls.until_each_has(2)
    calls.assert_exact(versions)
    assert all(set(answer.versions) == {0, 1, 2} for answer in calls.answers)


@pytest.mark.nightly
async def test_a_killed_engine_does_not_break_what_a_grammar_holds(versions, tmp_path):
    """The next one goes on in the middle of the JSON."""
    for path in versions:
        write_ascii_tokenizer(Path(path), VOCAB)
    items = {"enum": ["left", "right"]}
    schema = {
        "type": "array",
        "items": items,
        "minItems": 200,
        "maxItems": 200,
        "x-guidance": {"whitespace_flexible": False},
    }
    sampling = SamplingParams(
        max_tokens=8192, stop_token_ids=(STOP,), grammar=f"start: %json {json.dumps(schema)}"
    )
    engines = Engines(tmp_path, versions[0])
    answer = Completion()
    begun = asyncio.Event()

    async def call() -> None:
        request = GenerateRequest("r", prompts(1)[0], sampling, stream=True)
        async for chunk in engines.gate.generate(request):
            answer.add(chunk)
            begun.set()

    async with asyncio.TaskGroup() as tasks:
        async with engines.serving() as worker:
            asked = tasks.create_task(call())
            await begun.wait()
            os.kill(worker.pid, signal.SIGKILL)
            await worker.died
        async with engines.serving(update(versions, 1)):
            await asked
    assert set(answer.versions) == {0, 1}
    assert answer.reason == "stop"
    assert len(json.loads(ascii_text(answer.ids[:-1]))) == 200
