"""Components of every kind, each of which can be made to raise in one of its methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from agentjet.agents.readers import JsonlReader
from agentjet.judges.answers import ExactJudge
from ajet_core.interfaces import AgentAdapter, EpisodeOutcome, ModelEndpoint, Task, TaskSource
from ajet_server.embedded.jsonl_logger import JsonlLogger
from ajet_server.embedded.trie_merger import TrieMerger
from ajet_server.store.sqlite_store import SqliteStore
from ajet_testing.scripted_engine import ScriptedEngine
from ajet_testing.scripted_trainer import ScriptedTrainer
from ajet_training.advantages import GroupStd
from ajet_worlds.mine import MineWorld

CONSTRUCTOR = "constructor"

FAILING: list[str] = []
"""The methods that raise."""

CLOSED: list[str] = []
"""The kinds of the components that were closed."""


def boom(*_: object, **__: object) -> Any:
    """Fail in the way of a plugin with a bug."""
    raise ZeroDivisionError("boom")


class Breaks:
    """Makes the methods in `FAILING` raise."""

    def __init__(self, *arguments: Any) -> None:
        if CONSTRUCTOR in FAILING:
            boom()
        super().__init__(*arguments)

    def __getattribute__(self, name: str) -> Any:
        if name in FAILING:
            return boom
        if name == "close":
            CLOSED.append(type(self).__name__)
        return super().__getattribute__(name)


class BrokenEngine(Breaks, ScriptedEngine): ...


class BrokenTrainer(Breaks, ScriptedTrainer): ...


class BrokenStore(Breaks, SqliteStore): ...


class BrokenLogger(Breaks, JsonlLogger): ...


class BrokenMerger(Breaks, TrieMerger): ...


class BrokenEstimator(Breaks, GroupStd): ...


class BrokenReader(Breaks, JsonlReader): ...


class BrokenWorld(Breaks, MineWorld): ...


class PlainSource(TaskSource):
    def tasks(self, split: str) -> Sequence[Task]:
        """Return one task."""
        return [Task("a")]

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        """Reward the episode."""
        return EpisodeOutcome(reward=1.0)


class BrokenSource(Breaks, PlainSource): ...


class BrokenJudge(Breaks, ExactJudge):
    def __call__(self, task: Any, result: Any) -> float:
        """Judge."""
        return float(boom() if "__call__" in FAILING else super().__call__(task, result))


class PlainAdapter(AgentAdapter):
    def accepts(self, agent: object) -> bool:
        """Accept JSON encoders."""
        return isinstance(agent, json.JSONEncoder)

    def fresh(self, agent: object) -> object:
        """Return the agent."""
        return agent

    def current_agent(self) -> str | None:
        """Return no name."""
        return None

    async def run(self, agent: object, task: object) -> object:
        """Return the task."""
        return task


class BrokenAdapter(Breaks, PlainAdapter): ...


@click.command()
def command() -> None:
    """Fail."""
    boom()
