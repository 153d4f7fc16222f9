"""LlamaIndex: agents are workflows, and each step of one is a task of its own, which starts with a span."""

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
    """The adapter ``llamaindex``."""

    def accepts(self, agent: object) -> bool:
        """Whether it is a workflow, as agents and agent workflows are."""
        return isinstance(agent, Workflow)

    def fresh(self, agent: object) -> object:
        """The same: each run has a context and a memory of its own, unless it is given one."""
        return agent

    def current_agent(self) -> str | None:
        """The name of the agent whose step this is; in other workflows, that of the step."""
        return _speaker.get()

    def prepare(self) -> None:
        """Be told of steps."""
        with _lock:
            dispatcher = get_dispatcher()
            if not any(isinstance(handler, _Steps) for handler in dispatcher.span_handlers):
                dispatcher.add_span_handler(_Steps())

    async def run(self, agent: object, task: Any) -> object:
        """``run`` with the task as the user's message, or, of a mapping, with what it says."""
        assert isinstance(agent, Workflow)
        return await agent.run(**_inputs(agent, task))


def _inputs(agent: Workflow, task: Any) -> Mapping[str, Any]:
    """What the workflow begins with; one of the program's own may begin with anything.

    :raises TypeError: an agent is given nothing to answer.
    """
    is_agent = isinstance(agent, AgentWorkflow | BaseWorkflowAgent)
    if isinstance(task, Mapping):
        if is_agent and not task.keys() & _ANSWERED:
            raise TypeError(
                f"a task with {', '.join(map(repr, task))} is no input of an agent, which is a text or has one of "
                f"{', '.join(sorted(_ANSWERED))}: decorate a function that runs the agent"
            )
        return task
    if is_agent and not isinstance(task, ChatMessage):
        return {"user_msg": text_of_task(task)}
    return {"user_msg": task}


class _Steps(NullSpanHandler):
    """Notes in the task of a step whose it is; that task ends with it."""

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex calls it."""
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
        """Called where the step runs; functions of LlamaIndex that are no steps have an object or no event."""
        del parent_id, tags, kwargs
        if instance is not None or current_route() is None:
            return
        for value in bound_args.arguments.values():
            if isinstance(value, Event):
                # Named after the function, with a UUID.
                step = id_.partition("-")[0].rpartition(".")[2]
                _speaker.set(str(getattr(value, "current_agent_name", "") or step))
                return
