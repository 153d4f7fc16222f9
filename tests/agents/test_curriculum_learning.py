"""With a real tiny model, a curriculum spends its episodes on tasks of middle difficulty."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from agentjet import Curriculum, train, trainable
from agentjet.client import AsyncSwarmClient
from ajet_core.protocol import RunConfig
from ajet_testing.door_training import real_server

pytestmark = pytest.mark.processes

TASKS = [*(f"solved-{i}" for i in range(10)), *(f"hard-{i}" for i in range(10))]
MIDDLE = [f"middle-{i}" for i in range(5)]
EPISODES = 4

llm = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


async def solve(task: str) -> str:
    answer = await llm.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": task}],
        max_tokens=4,
        temperature=1.0,
    )
    return answer.choices[0].message.content or ""


def score(task: str, answer: str) -> float:
    """What a model without any knowledge gets always, never, or in about half of its episodes."""
    chance = {"solved": 1.0, "hard": 0.0, "middle": float(sum(answer.encode()) % 2)}
    return chance[task.partition("-")[0]]


def share_of_middle(
    url: str, token: str, config: RunConfig, epochs: int, curriculum: Curriculum | None
) -> float:
    report = train(
        trainable(solve, reward=score),
        [*TASKS, *MIDDLE],
        client=AsyncSwarmClient(url, token),
        config=config,
        epochs=epochs,
        shuffle=0,
        curriculum=curriculum,
        progress=False,
    )
    assert not report.failures
    kinds = Counter(result.task.id.partition("-")[0] for result in report.outcomes)
    # Two passes' worth of episodes, however they are chosen.
    assert kinds.total() == 2 * len([*TASKS, *MIDDLE]) * EPISODES
    return kinds["middle"] / kinds.total()


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_more_episodes_are_of_middle_difficulty(tmp_path: Path) -> None:
    pytest.importorskip("ajet_backend_torch")
    from ajet_demo.tiny_model import create_tiny_model

    model = tmp_path / "models" / "tiny"
    create_tiny_model(model, seed=0, warmup_steps=1)
    shares = []
    for number, (epochs, choice) in enumerate([(2, None), (10, Curriculum(share=0.2))]):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "models").symlink_to(model.parent)
        with real_server(directory, sys.executable) as (url, token, _):
            config = {
                "model": {"path": str(directory / "models" / "tiny"), "renderer": "qwen3"},
                "batch": {"tasks": 5, "episodes_per_task": EPISODES},
            }
            run = RunConfig.model_validate(config)
            shares.append(share_of_middle(url, token, run, epochs, choice))
    uniform, chosen = shares
    assert uniform == pytest.approx(0.2)
    assert chosen > 1.6 * uniform
