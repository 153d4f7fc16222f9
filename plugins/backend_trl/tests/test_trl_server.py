"""The trainer under a real server, with the engine ``torch`` in a process of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from batches import load
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen2Config

from ajet_core.plugin import PluginManager
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.protocol import ServerState
from ajet_core.server.workers import RunWorkers
from ajet_core.testing.plugins import entry_points_of
from tests.server import conftest as server_conftest
from tests.server.conftest import Running, ServerFactory

model_dir = server_conftest.model_dir

HOOKS = {
    "embedded": "ajet_core.embedded.hooks",
    "torch": "ajet_backend_torch.hooks",
    "trl": "ajet_backend_trl.hooks",
}


def plugins() -> PluginManager:
    """The plugins of this repository, whether they are installed or merely on the path."""
    points = list(installed_entry_points())
    known = {point.name for point in points if point.group == "agentjet"}
    for name, hooks in HOOKS.items():
        if name not in known:
            points += entry_points_of(name, hooks)
    return PluginManager(entry_points=points)


@pytest.fixture
def servers(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFactory:
    path = tmp_path / "models" / "tiny"
    shutil.copytree(model_dir, path)
    size = Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.1,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    monkeypatch.setattr(server_conftest, "scripted_plugins", plugins)
    return ServerFactory(path, tmp_path / "run")


RUN = {
    "engine": {"name": "torch", "settings": {"device": "cpu"}},
    "trainer": {"name": "trl", "settings": {"device": "cpu"}},
    "algorithm": {"learning_rate": 1e-2, "minibatches": 2},
    "checkpoint_every": 1,
}


async def roll(server: Running) -> None:
    body = {**server.config(), **RUN}
    answer = await server.http.put("/v1/run", headers=server_conftest.CONTROL, json=body)
    assert answer.status_code == 200, answer.text
    answer = await server.http.post(
        "/v1/run/start", headers=server_conftest.CONTROL, json={"wait_seconds": 100.0}
    )
    assert answer.json()["state"] == "ROLLING"


async def episode(server: Running, task: str, reward: float) -> None:
    grant = await server.claim(task)
    answer = await server.chat(grant, f"hello {task}", max_tokens=6, temperature=0.8)
    assert answer.status_code == 200, answer.text
    await server.end(grant, reward)


async def batch(server: Running) -> None:
    """The episodes of a batch."""
    await asyncio.gather(*(episode(server, task, r) for task in "ab" for r in (0.0, 1.0)))


async def until_step(server: Running, step: int) -> None:
    coordinator = server.service.coordinator
    await server.service.board.wait_until(
        lambda: coordinator.step >= step and server.service.board.state is ServerState.ROLLING
    )


def workers_of(server: Running) -> RunWorkers:
    loop = server.service.coordinator.loop
    assert loop is not None
    workers = loop.supervisor.running
    assert workers is not None
    return workers


@pytest.mark.timeout(300)
async def test_a_trainer_that_is_killed_in_a_step_is_replaced_and_goes_on_at_its_checkpoint(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await roll(server)
        await batch(server)
        await until_step(server, 1)
        trainer = workers_of(server).trainer
        # Stopped, it cannot be done with its step before it is killed.
        os.kill(trainer.pid, signal.SIGSTOP)
        await batch(server)
        await server.service.board.wait_until(
            lambda: server.service.board.state is ServerState.ROLLING_POST
        )
        os.kill(trainer.pid, signal.SIGKILL)
        await until_step(server, 2)
        assert workers_of(server).trainer.pid != trainer.pid
        steps = await server.service.store.steps()
        assert [step.step for step in steps] == [1, 2]
        # Tokens, sampled in one process and trained in another, by the same weights.
        for step in steps:
            assert step.metrics["logprob_gap"] < 1e-4
        published = sorted((servers.run_dir / "weights").iterdir())
        assert [path.name for path in published] == ["v000000001", "v000000002"]
        first, second = (load(str(path)).state_dict() for path in published)
        assert any(not torch.equal(first[name], second[name]) for name in first)
