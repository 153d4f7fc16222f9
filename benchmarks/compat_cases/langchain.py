"""Cases of LangChain's agents."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

from compat_cases.contract import NOWHERE, SCHEMA, open_door

model = ChatOpenAI(model="gpt-5", base_url=NOWHERE, api_key="sk-real")
tool = StructuredTool.from_function(open_door)
agent = create_agent(model, [tool], name="worker")


def asked(task: str) -> Any:
    return {"messages": [{"role": "user", "content": task}]}


async def two_turns(task: str) -> str:
    return (await agent.ainvoke(asked(task)))["messages"][-1].text


async def streaming(task: str) -> str:
    pieces = [
        chunk.text
        async for chunk, _ in agent.astream(asked(task), stream_mode="messages")
        if isinstance(chunk, AIMessageChunk) and chunk.text
    ]
    assert len(pieces) > 1
    return "".join(pieces)


async def parallel_calls(task: str) -> list[str]:
    messages = (await agent.ainvoke(asked(task)))["messages"]
    return [
        call["args"]["door"]
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]


async def structured_output(task: str) -> dict[str, Any]:
    schema = {**SCHEMA, "title": "Choice", "description": "The door to take."}
    chooser = create_agent(model, [], response_format=schema, name="worker")
    return (await chooser.ainvoke(asked(task)))["structured_response"]


async def structured_with_tools(task: str) -> dict[str, Any]:
    form = ProviderStrategy({**SCHEMA, "title": "Choice"})
    chooser = create_agent(model, [tool], response_format=form, name="worker")
    return (await chooser.ainvoke(asked(task)))["structured_response"]


bad_arguments = two_turns
server_error = two_turns


def rate_limited(task: str) -> str:
    """Use the synchronous API."""
    return agent.invoke(asked(task))["messages"][-1].text
