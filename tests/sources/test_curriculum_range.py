"""A curriculum over a source takes the range of rewards that the source states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentjet import AsyncSwarmClient, Curriculum
from ajet_core.interfaces import ComponentSettings, EpisodeOutcome, ModelEndpoint, Task, TaskSource
from ajet_sources import train_source
from ajet_sources import training as sources_training


class Signed(TaskSource[ComponentSettings]):
    reward_range = (-1.0, 1.0)

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}-1")]

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        raise NotImplementedError


@pytest.mark.parametrize(("given", "expected"), [(None, (-1.0, 1.0)), ((0.0, 5.0), (0.0, 5.0))])
async def test_the_range_is_that_of_the_source(
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[float, float] | None,
    expected: tuple[float, float],
) -> None:
    used: list[Curriculum] = []

    async def train_async(*_: Any, curriculum: Curriculum, **__: Any) -> None:
        used.append(curriculum)

    monkeypatch.setattr(sources_training, "train_async", train_async)
    async with AsyncSwarmClient("http://127.0.0.1:9", "no-token") as client:
        choice = Curriculum(share=0.3, rewards=given)
        await train_source(Signed(ComponentSettings()), client=client, curriculum=choice)
    assert [(its.share, its.rewards) for its in used] == [(0.3, expected)]
