"""Tiny models for the walks of a source, with tools as its library writes them.

A tiny model knows only the words that it was warmed up on. In a prompt with others, it answers with
noise now and then. Training then has to remove the noise first, and can increase it instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ajet_core.interfaces import Chat, ComponentSettings, WorldAnswer, WorldOutcome, WorldPrompt
from ajet_worlds.grid import GridWorld
from ajet_worlds.gridwalk import TOOLS
from ajet_worlds.tiny_model import create_tiny_model

__all__ = ["STRICT_TOOLS", "create_walk_model"]

STRICT_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            **tool["function"],
            "parameters": {**tool["function"]["parameters"], "additionalProperties": False},
            "strict": True,
        },
    }
    for tool in TOOLS
]
"""The tools of the walks as OpenAI's strict mode has them."""


def create_walk_model(directory: Path, seed: int, tools: Sequence[Any] = TOOLS) -> None:
    """Create a tiny model that has seen walks with these tools; see `create_tiny_model`.

    :param tools: in the form of the chat completions API of OpenAI.
    """
    create_tiny_model(directory, worlds=[_Walks(tools)], seed=seed)


class _Walks(GridWorld[ComponentSettings]):
    """The grid, with other tools in its prompts."""

    def __init__(self, tools: Sequence[Any]) -> None:
        super().__init__(ComponentSettings())
        self._tools = tuple(tools)

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        return await super().play(task_id, _OtherTools(chat, self._tools))


class _OtherTools(Chat):
    """A chat whose prompts have other tools."""

    def __init__(self, chat: Chat, tools: Sequence[Any]) -> None:
        self._chat = chat
        self._tools = tools

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        return await self._chat.ask(replace(prompt, tools=self._tools))

    async def wait(self, seconds: float) -> None:
        await self._chat.wait(seconds)
