"""Adapter for LlamaIndex, where agents are workflows.

Each step of a workflow runs in a separate asyncio task, which starts with a span.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextvars import ContextVar
from inspect import BoundArguments
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, BaseWorkflowAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from workflows import Workflow
from workflows.events import Event

from agentjet.agents import current_route, text_of_task
from ajet_core.interfaces import AgentAdapter

_speaker: ContextVar[str | None] = ContextVar("ajet_llamaindex_speaker", default=None)
_lock = threading.Lock()
_ANSWERED = frozenset({"user_msg", "chat_history", "start_event"})


class LlamaIndexAdapter(AgentAdapter):
    """The agent adapter ``llamaindex``."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is a workflow; agents and agent workflows are."""
        return isinstance(agent, Workflow)

    def fresh(self, agent: object) -> object:
        """Return the same object: each run has a new context and memory unless it is given one."""
        return agent

    def current_agent(self) -> str | None:
        """Return the agent whose step is running; in other workflows, the step's name."""
        return _speaker.get()

    def prepare(self) -> None:
        """Register a span handler that records steps."""
        with _lock:
            dispatcher = get_dispatcher()
            if not any(isinstance(handler, _Steps) for handler in dispatcher.span_handlers):
                dispatcher.add_span_handler(_Steps())

    async def run(self, agent: object, task: Any) -> object:
        """Call ``run`` with the task as the user message, or with a mapping as the arguments."""
        assert isinstance(agent, Workflow)
        return await agent.run(**_inputs(agent, task))


def _inputs(agent: Workflow, task: Any) -> Mapping[str, Any]:
    """Return the arguments of ``run``; a workflow that is not an agent may take any.

    :raises TypeError: the task has no input that an agent answers.
    """
    is_agent = isinstance(agent, AgentWorkflow | BaseWorkflowAgent)
    if isinstance(task, Mapping):
        if is_agent and not task.keys() & _ANSWERED:
            raise TypeError(
                f"a task with {', '.join(map(repr, task))} is not an input of an agent, "
                f"which must be text or have one of {', '.join(sorted(_ANSWERED))}: decorate "
                "a function that runs the agent"
            )
        return task
    if is_agent and not isinstance(task, ChatMessage):
        return {"user_msg": text_of_task(task)}
    return {"user_msg": task}


class _Steps(NullSpanHandler):
    """Record the current agent in the asyncio task of a step, which ends with the step."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex lists the handler."""
        return "AjetSteps"

    def span_enter(
        self,
        id_: str,
        bound_args: BoundArguments,
        instance: Any | None = None,
        parent_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the agent of a step. Spans that are not steps have an instance or no event."""
        del parent_id, tags, kwargs
        if instance is not None or current_route() is None:
            return
        for value in bound_args.arguments.values():
            if isinstance(value, Event):
                # The span's id is the function's name followed by a UUID.
                step = id_.partition("-")[0].rpartition(".")[2]
                _speaker.set(str(getattr(value, "current_agent_name", "") or step))
                return
