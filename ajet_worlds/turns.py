"""The loop of an agent with tools, shared by several worlds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ajet_core.interfaces import Chat, WorldAnswer, WorldCall, WorldPrompt

UseTool = Callable[[WorldCall, WorldAnswer], Awaitable[str]]
"""Executes one call of an answer and returns the tool's reply."""


async def use_tools(
    chat: Chat,
    messages: Sequence[Any],
    tools: Sequence[Any],
    use_tool: UseTool,
    is_over: Callable[[], bool],
    *,
    agent: str = "",
) -> WorldAnswer | None:
    """Let the model call tools until the episode is over.

    :param messages: the first messages of the conversation.
    :param agent: name of the agent, as in `WorldPrompt`.
    :return: the answer without a tool call that ended the conversation; None if `is_over` ended it.
    """
    history = list(messages)
    while not is_over():
        answer = await chat.ask(WorldPrompt(history, tools, agent))
        if not answer.calls:
            return answer
        history.append(answer.message())
        for call in answer.calls:
            reply = await use_tool(call, answer)
            history.append({"role": "tool", "tool_call_id": call.id, "content": reply})
    return None
