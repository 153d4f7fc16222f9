"""A real trainer under a real server, with the engine ``torch`` in a separate process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen2Config

from ajet_core.plugin import PluginManager
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.protocol import ServerState
from ajet_core.protocol.run import ModelConfig
from ajet_server.run.run_workers import RunWorkers
from ajet_testing.plugins import entry_points_of
from ajet_testing.servers import CONTROL, Running, ServerFactory, write_scripted_model
from ajet_torch.models import load_model


def plugins(*names: str) -> PluginManager:
    """Return a manager of this repository's trainers, even if they are only on the path."""
    hooks = {name: f"ajet_backend_{name}.hooks" for name in names}
    points = list(installed_entry_points())
    known = {point.name for point in points if point.group == "agentjet"}
    for name, module in {"embedded": "ajet_installation.hooks", **hooks}.items():
        if name not in known:
            points += entry_points_of(name, module)
    return PluginManager(entry_points=points)


def servers_with(trainer: str, directory: Path) -> ServerFactory:
    """Create a factory of servers with a tiny random model and a trainer's plugin."""
    path = write_scripted_model(directory / "models" / "tiny")
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
    return ServerFactory(path, directory / "run", lambda: plugins("torch", trainer))


async def roll(server: Running, trainer: str, **settings: object) -> None:
    """Start a run and wait until it rolls.

    :param settings: settings of the trainer.
    """
    body = {
        **server.config(),
        "engine": {"name": "torch", "settings": {"device": "cpu"}},
        "trainer": {"name": trainer, "settings": {"device": "cpu", **settings}},
        "algorithm": {"learning_rate": 1e-2, "minibatches": 2},
        "checkpoint_every": 1,
    }
    answer = await server.http.put("/v1/run", headers=CONTROL, json=body)
    assert answer.status_code == 200, answer.text
    answer = await server.http.post(
        "/v1/run/start",
        headers=CONTROL,
        json={"wait_seconds": 600.0},
        # The server answers only when trainer and engine are up.
        timeout=None,
    )
    assert answer.json()["state"] == "ROLLING"


async def _episode(server: Running, task: str, reward: float) -> None:
    grant = await server.claim(task)
    answer = await server.chat(grant, f"hello {task}", max_tokens=6, temperature=0.8)
    assert answer.status_code == 200, answer.text
    await server.end(grant, reward)


async def _batch(server: Running) -> None:
    await asyncio.gather(*(_episode(server, task, r) for task in "ab" for r in (0.0, 1.0)))


async def _until_step(server: Running, step: int) -> None:
    coordinator = server.service.coordinator
    await server.service.board.wait_until(
        lambda: coordinator.step >= step and server.service.board.state is ServerState.ROLLING
    )


def _workers_of(server: Running) -> RunWorkers:
    loop = server.service.coordinator.loop
    assert loop is not None
    workers = loop.supervisor.running
    assert workers is not None
    return workers


async def kill_in_a_step(servers: ServerFactory, trainer_name: str, **settings: object) -> None:
    """Check that a trainer killed in a step is replaced, and continues from its checkpoint.

    :param settings: settings of the trainer.
    """
    async with servers.running() as server:
        await roll(server, trainer_name, **settings)
        await _batch(server)
        await _until_step(server, 1)
        trainer = _workers_of(server).trainer_process
        # Stop it, so that it cannot finish its step before it is killed.
        os.kill(trainer.pid, signal.SIGSTOP)
        await _batch(server)
        await server.service.board.wait_until(
            lambda: server.service.board.state is ServerState.ROLLING_POST
        )
        os.kill(trainer.pid, signal.SIGKILL)
        await _until_step(server, 2)
        assert _workers_of(server).trainer_process.pid != trainer.pid
        steps = await server.service.store.steps()
        assert [step.step for step in steps] == [1, 2]
        # Tokens were sampled in one process and trained in another, with the same weights.
        for step in steps:
            assert step.metrics["logprob_gap"] < 1e-4
        published = sorted((servers.run_dir / "weights").iterdir())
        assert [path.name for path in published] == ["v000000001", "v000000002"]
        first, second = (
            load_model(ModelConfig(path=str(path)), torch.device("cpu")).state_dict()
            for path in published
        )
        assert any(not torch.equal(first[name], second[name]) for name in first)
