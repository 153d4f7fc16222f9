"""Copies of agents and teams that no other episode sees."""

from __future__ import annotations

import copy
from typing import Any

from agentscope.agent import Agent
from agentscope.pipeline import TeamPipeline
from agentscope.state import AgentState
from agentscope.tool import Toolkit


def twin_of_team(team: TeamPipeline) -> TeamPipeline:
    """Return a twin of a team, with twins of its agents."""
    twin = copy.copy(team)
    twin.leader = twin_of(team.leader)
    twin.members = {
        name: member.model_copy(update={"agent": twin_of(member.agent)})
        for name, member in team.members.items()
    }
    return twin


def twin_of(agent: Agent) -> Agent:
    """Return a twin with an empty state that keeps the permissions.

    Model and tools are shared: they hold locks and connections, so a deep copy is not possible. The
    other parts of the agent are constructed again, because some of them refer to its state.
    """
    twin = copy.copy(agent)
    Agent.__init__(
        twin,
        name=agent.name,
        system_prompt=agent._system_prompt,
        model=_impatient(agent.model),
        toolkit=_toolkit(agent.toolkit),
        state=AgentState(permission_context=agent.state.permission_context.model_copy(deep=True)),
        offloader=agent.offloader,
        model_config=agent.model_config,
        context_config=agent.context_config,
        # Otherwise an interrupted episode would continue, with an answer that no model gave.
        react_config=agent.react_config.model_copy(
            update={"interruption_raise_cancelled_error": True}
        ),
        injection_config=agent.injection_config,
    )
    # An agent keeps its middlewares in one list for each kind.
    for name, value in vars(agent).items():
        if name.endswith("_middlewares"):
            setattr(twin, name, value)
    return twin


def _impatient(model: Any) -> Any:
    """Return a model without retries: combined with the SDK's, they would send twelve requests."""
    twin = copy.copy(model)
    twin.max_retries = 0
    return twin


def _toolkit(toolkit: Toolkit) -> Toolkit:
    """Return a copy of the toolkit, because agents add tools to theirs."""
    twin = copy.copy(toolkit)
    twin.tool_groups = []
    for group in toolkit.tool_groups:
        own = copy.copy(group)
        own.tools = list(group.tools)
        twin.tool_groups.append(own)
    return twin
