"""Copies are complete, and share no memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import program
import pytest
from ajet_strands.adapter import StrandsAdapter
from ajet_strands.settings import StrandsAdapterSettings
from strands import Agent
from strands.hooks import BeforeModelCallEvent, HookProvider, HookRegistry
from strands.multiagent import GraphBuilder, Status, Swarm
from strands.session.file_session_manager import FileSessionManager
from typing_extensions import override

from ajet_core.errors import ConfigError
from ajet_core.interfaces import AgentAdapter

MESSAGE = {"role": "user", "content": [{"text": "a secret of another episode"}]}


def adapter(**settings: bool) -> AgentAdapter:
    return StrandsAdapter(StrandsAdapterSettings(**settings))


class Counter(HookProvider):
    """A hook with a memory."""

    def __init__(self) -> None:
        self.calls = 0

    @override
    def register_hooks(self, registry: HookRegistry, **_: object) -> None:
        registry.add_callback(BeforeModelCallEvent, self.count)

    def count(self, _: BeforeModelCallEvent) -> None:
        self.calls += 1


def hooks_of(agent: Agent) -> list[object]:
    callbacks = agent.hooks._registered_callbacks[BeforeModelCallEvent]
    return [getattr(entry.callback, "__self__", None) for entry in callbacks]


def test_a_copy_has_no_messages_and_its_own_state() -> None:
    agent = program.make_worker()
    agent.messages.append(MESSAGE)
    agent.state.set("opened", ["left"])
    new = adapter().fresh(agent)
    assert new.messages == [] and len(agent.messages) == 1
    new.state.set("opened", ["right"])
    assert agent.state.get("opened") == ["left"]
    assert (new.name, new.system_prompt, new.tool_names) == (
        agent.name,
        agent.system_prompt,
        agent.tool_names,
    )
    assert new.model is agent.model
    assert new.tool_caller._agent_ref() is new
    assert new._plugin_registry._agent_ref() is new


def test_messages_can_be_kept() -> None:
    agent = program.make_worker()
    agent.messages.append(MESSAGE)
    new = adapter(keep_messages=True).fresh(agent)
    assert new.messages == [MESSAGE] and new.messages is not agent.messages


def test_hooks_are_copied_and_not_lost() -> None:
    counter = Counter()
    agent = Agent(model=program.model, hooks=[counter], callback_handler=None)
    new = adapter().fresh(agent)
    copied = [hook for hook in hooks_of(new) if isinstance(hook, Counter)]
    assert len(copied) == 1 and copied[0] is not counter


def test_an_agent_that_is_a_tool_is_copied() -> None:
    worker = program.make_worker()
    agent = Agent(model=program.model, tools=[worker.as_tool(preserve_context=True)])
    new = adapter().fresh(agent)
    (tool,) = new.tool_registry.registry.values()
    assert tool.agent is not worker and tool.agent.name == "worker"


def test_a_graph_is_copied_with_its_cycles_and_conditions() -> None:
    def again(state: object) -> bool:
        return False

    builder = GraphBuilder()
    planner, worker = program.make_planner(), program.make_worker()
    builder.add_node(planner, "plan")
    builder.add_node(worker, "work")
    builder.add_edge("plan", "work")
    builder.add_edge("work", "plan", condition=again)
    builder.set_entry_point("plan")
    builder.set_max_node_executions(7)
    graph = builder.build()
    worker.messages.append(MESSAGE)
    new = adapter().fresh(graph)
    assert new.max_node_executions == 7
    assert new.nodes["work"].executor is not worker
    assert new.nodes["work"].executor.messages == []
    ours = {id(node) for node in new.nodes.values()}
    for node in new.nodes.values():
        assert {id(one) for one in node.dependencies} <= ours
    for edge in new.edges:
        assert {id(edge.from_node), id(edge.to_node)} <= ours
    assert {id(node) for node in new.entry_points} <= ours
    assert [edge.condition for edge in new.edges if edge.condition] == [again]


def test_the_copy_of_a_swarm_hands_over_within_itself() -> None:
    planner, worker = program.make_planner(), program.make_worker()
    swarm = Swarm([planner, worker], entry_point=planner)
    new = adapter().fresh(swarm)
    assert new.entry_point is new.nodes["planner"].executor is not planner
    tool = new.nodes["planner"].executor.tool_registry.registry["handoff_to_agent"]
    for one in (swarm, new):
        one.state.completion_status = Status.EXECUTING
    tool(agent_name="worker", message="go")
    assert swarm.state.handoff_node is None
    assert new.state.handoff_node is new.nodes["worker"]


def test_memory_outside_of_the_agent_is_refused(tmp_path: object) -> None:
    sessions = FileSessionManager(session_id="one", storage_dir=str(tmp_path))
    agent = Agent(name="keeper", model=program.model, session_manager=sessions)
    with pytest.raises(ConfigError, match="keeper has a FileSessionManager"):
        adapter().fresh(agent)


def test_what_cannot_be_copied_is_named() -> None:
    agent = program.make_worker()
    agent.connection = asyncio.Lock(), Path("/dev/null").open()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="because of connection"):
        adapter().fresh(agent)
