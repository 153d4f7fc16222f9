"""Copies of agents and teams without their conversations.

`dump_component` also makes copies, but each agent gets a separate client, and tool functions lose
the objects that they refer to.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

from autogen_agentchat.base import ChatAgent, TerminationCondition
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import CancellationToken, SingleThreadedAgentRuntime
from autogen_core.memory import ListMemory, Memory
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, StaticWorkbench, Workbench
from pydantic import BaseModel

from ajet_core.errors import ConfigError

_TEAM = ("_runtime", "_output_message_queue", "_initialized", "_is_running", "_embedded_runtime")


def copied(agent: object) -> Any:
    """Return a copy of an agent or a team that shares model clients, tools and connections.

    :raises ConfigError: a part of it cannot be copied.
    """
    memo: dict[int, Any] = {}
    for part in _parts(agent):
        if _is_shared(part):
            memo[id(part)] = part
        elif isinstance(part, BaseGroupChat):
            _check(part)
            copied: Any = part
            memo[id(copied._runtime)] = SingleThreadedAgentRuntime(
                ignore_unhandled_exceptions=False
            )
            memo[id(copied._output_message_queue)] = asyncio.Queue()
    try:
        twin = copy.deepcopy(agent, memo)
    except TypeError as error:
        raise ConfigError(
            f"cannot copy {type(agent).__name__} for each episode ({error}): decorate a "
            "function that creates it and runs it"
        ) from error
    for part in _parts(twin):
        if isinstance(part, BaseGroupChat):
            # A team's members belong to its runtime: the copy creates them again in a new runtime.
            vars(part).update(_initialized=False, _is_running=False, _embedded_runtime=True)
    return twin


async def forget(agent: object) -> None:
    """Reset a copy to its state before any run; messages given to its constructor are kept."""
    parts = [part for part in _parts(agent) if not _is_shared(part)]
    for part in parts:
        if isinstance(part, ChatAgent):
            await part.on_reset(CancellationToken())
        elif isinstance(part, TerminationCondition):
            await part.reset()
    for part in parts:
        if isinstance(part, ChatCompletionContext):
            await part.clear()
            for message in getattr(part, "_initial_messages", None) or ():
                await part.add_message(message)


def _parts(root: object) -> Iterator[Any]:
    """Iterate over the parts of an AutoGen object, each once."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        # Keep a reference, so that no other object gets the same id.
        seen[id(part)] = part
        yield part
        if isinstance(part, Mapping):
            left.extend(part.values())
        elif isinstance(part, list | tuple | set | frozenset | deque):
            left.extend(part)
        elif _is_of_autogen(part) and not _is_shared(part):
            # A team's runtime is not copied, and it refers to parts of other teams.
            left.extend(each for name, each in vars(part).items() if name != "_runtime")


def _is_of_autogen(part: object) -> bool:
    if isinstance(part, type | BaseModel) or not hasattr(part, "__dict__"):
        return False
    return any(kind.__module__.startswith("autogen_") for kind in type(part).__mro__)


def _is_shared(part: object) -> bool:
    """Return whether copies share the part: it belongs to the program or holds connections."""
    if isinstance(part, MethodType):
        return not _is_of_autogen(part.__self__)
    if isinstance(part, BaseTool):
        return not isinstance(part, AgentTool | TeamTool)
    if isinstance(part, Workbench):
        return not isinstance(part, StaticWorkbench)
    if isinstance(part, Memory):
        return not isinstance(part, ListMemory)
    return isinstance(part, ChatCompletionClient)


def _check(team: BaseGroupChat) -> None:
    missing = [name for name in _TEAM if not hasattr(team, name)]
    if missing:
        raise ConfigError(
            f"teams of this version of AutoGen have no {', '.join(missing)}; "
            "agentjet-agents-autogen supports 0.7"
        )
