"""Adapter for Google's ADK, whose agents call Gemini by default and keep no conversation."""

from __future__ import annotations

import importlib
import os
from typing import Any

from google.adk.agents import BaseAgent
from google.adk.runners import InMemoryRunner
from google.genai import types

from agentjet.agents import text_of_task
from ajet_agents_adk.models import speaker, swap_models
from ajet_agents_adk.telemetry import silence
from ajet_core.interfaces import AgentAdapter

_APP = "agentjet"
_USER = "user"


class ADKAdapter(AgentAdapter):
    """The agent adapter ``google-adk``."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is an agent of any kind, including those that run others."""
        return isinstance(agent, BaseAgent)

    def fresh(self, agent: object) -> object:
        """Return a clone with clones of its sub-agents. They share tools and models."""
        assert isinstance(agent, BaseAgent)
        return agent.clone()

    def current_agent(self) -> str | None:
        """Return the name of the agent that calls its model: the author of its events."""
        return speaker()

    def prepare(self) -> None:
        """Swap models in episodes, and make no spans there."""
        # By default LiteLLM fetches the prices of models from GitHub when it is imported.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        # ADK would import it in the first call, which takes seconds in which no heartbeat is sent.
        importlib.import_module("litellm")
        swap_models()
        silence()

    async def run(self, agent: object, task: object) -> object:
        """Run the agent in a session of its own, with the task as the user's message.

        :return: the list of events.
        """
        assert isinstance(agent, BaseAgent)
        message = _message(task)
        async with InMemoryRunner(agent=agent, app_name=_APP) as runner:
            session = await runner.session_service.create_session(app_name=_APP, user_id=_USER)
            return [
                event
                async for event in runner.run_async(
                    user_id=_USER, session_id=session.id, new_message=message
                )
            ]


def _message(task: Any) -> types.Content:
    """Return the user's message: a content, or a text."""
    if isinstance(task, types.Content):
        return task
    return types.Content(role=_USER, parts=[types.Part(text=text_of_task(task))])
