"""Track whose turn it is, in the methods with which an agent takes a turn.

AutoGen itself knows this only inside teams.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from autogen_agentchat.base import ChatAgent
from autogen_core import AgentId, MessageHandlerContext

from agentjet.agents import current_route, derived_classes, override_method


class _Turn(NamedTuple):
    """An agent's turn.

    :ivar handler: the message handler in which the turn started; None outside teams.
    """

    agent: str
    handler: AgentId | None


_turn: ContextVar[_Turn | None] = ContextVar("ajet_autogen_turn", default=None)
# A team member's type: the name of the agent or of the manager's class, and the team's id.
_MEMBER = re.compile(r"(.+)_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.DOTALL)


def speaker() -> str | None:
    """Return the name of the agent or team manager whose turn it is."""
    turn, handler = _turn.get(), _handler()
    # A handler that started within a turn belongs to a team inside the agent.
    if handler is None or (turn is not None and turn.handler == handler):
        return turn.agent if turn is not None else None
    member = _MEMBER.fullmatch(handler.type)
    return member.group(1) if member else handler.type


def note_turns() -> None:
    """Wrap every known agent class so that it records its turns in episodes."""
    for kind in derived_classes(ChatAgent):
        override_method(kind, "on_messages", _noting)
        override_method(kind, "on_messages_stream", _noting_stream)


def _noting(on_messages: Callable[..., Any]) -> Any:
    async def notes(self: ChatAgent, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return await on_messages(self, *args, **kwargs)
        with _taking(self):
            return await on_messages(self, *args, **kwargs)

    return notes


def _noting_stream(on_messages_stream: Callable[..., AsyncGenerator[Any, None]]) -> Any:
    async def notes(self: ChatAgent, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        stream = on_messages_stream(self, *args, **kwargs)
        try:
            while True:
                # Not around the yield: other code runs between two items.
                with _taking(self):
                    try:
                        item = await anext(stream)
                    except StopAsyncIteration:
                        return
                yield item
        finally:
            await stream.aclose()

    return notes


@contextmanager
def _taking(agent: ChatAgent) -> Iterator[None]:
    before = _turn.set(_Turn(agent.name, _handler()))
    try:
        yield
    finally:
        _turn.reset(before)


def _handler() -> AgentId | None:
    try:
        return MessageHandlerContext.agent_id()
    except RuntimeError:
        return None
