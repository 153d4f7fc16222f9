"""A graph of two agents that knows nothing of training."""

from __future__ import annotations

import os
from typing import Any, TypedDict

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

model = ChatOpenAI(
    model="any-model",
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"),
    api_key="none",
)


@tool
def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


planner = create_agent(
    model,
    system_prompt="Say in one sentence which door to take: left, middle or right.",
    name="planner",
)
worker = create_agent(
    model,
    [open_door],
    system_prompt="Open the door that the plan names, then say what you found.",
    name="worker",
)


class State(TypedDict, total=False):
    task: str
    plan: str
    messages: list[AnyMessage]


def _user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def plan(state: State) -> State:
    return {"plan": planner.invoke(_user(state["task"]))["messages"][-1].text}


async def aplan(state: State) -> State:
    return {"plan": (await planner.ainvoke(_user(state["task"])))["messages"][-1].text}


def work(state: State) -> State:
    asked = _user(f"{state['task']}\nThe plan: {state['plan']}")
    return {"messages": worker.invoke(asked)["messages"]}


async def awork(state: State) -> State:
    asked = _user(f"{state['task']}\nThe plan: {state['plan']}")
    return {"messages": (await worker.ainvoke(asked))["messages"]}


_graph = StateGraph(State)
_graph.add_node("plan", RunnableLambda(plan, afunc=aplan))
_graph.add_node("work", RunnableLambda(work, afunc=awork))
_graph.add_edge(START, "plan")
_graph.add_edge("plan", "work")
_graph.add_edge("work", END)
graph = _graph.compile(name="doors")


def doors(state: Any) -> list[str]:
    return [
        call["args"].get("door", "")
        for message in state["messages"]
        if isinstance(message, AIMessage)
        for call in message.tool_calls
        if call["name"] == "open_door"
    ]


async def play(task: str) -> list[str]:
    return doors(await graph.ainvoke({"task": task}))


def play_sync(task: str) -> list[str]:
    return doors(graph.invoke({"task": task}))
