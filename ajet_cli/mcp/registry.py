"""The registry of tools: which functions `ajet mcp` offers, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ajet_cli.mcp.answers import ToolAnswer
from ajet_core.errors import PluginConflictError

__all__ = ["AssistantTool", "ToolRegistry"]


@dataclass(frozen=True, slots=True)
class AssistantTool:
    """One tool.

    Its name, description and parameters are those of the function, whose parameters must be
    annotated. It raises `AjetError`, which the assistant gets as one line.

    :param function: returns within 50 s; what takes longer is waited for in several calls.
    :param changes: whether it changes anything.
    :param destroys: whether a change can lose something, such as the steps after a checkpoint.
    """

    function: Callable[..., Awaitable[ToolAnswer[Any]]]
    changes: bool = False
    destroys: bool = False

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__


class ToolRegistry:
    """Tools by name.

    :raises PluginConflictError: two tools have the same name.
    """

    def __init__(self, tools: Iterable[AssistantTool] = ()) -> None:
        self._tools: dict[str, AssistantTool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: AssistantTool) -> None:
        """Add a tool.

        :raises PluginConflictError: another tool has its name.
        """
        if tool.name in self._tools:
            raise PluginConflictError(f"two tools for assistants have the name {tool.name!r}")
        self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[AssistantTool]:
        return iter(self._tools.values())

    def read_only(self) -> ToolRegistry:
        """Return the tools that change nothing."""
        return ToolRegistry(tool for tool in self if not tool.changes)
