"""Cases of LlamaIndex."""

from __future__ import annotations

from typing import Any, Literal

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from compat_cases import contract

# In these cases the program calls the model without an agent.
NAMELESS = frozenset({"structured_output"})
llm = OpenAILike(
    model="gpt-5",
    api_base=contract.NOWHERE,
    api_key="sk-real",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32768,
)
worker = FunctionAgent(name="worker", tools=[contract.open_door], llm=llm)
quiet_worker = FunctionAgent(name="worker", tools=[contract.open_door], llm=llm, streaming=False)


class Choice(BaseModel):
    """The door to take."""

    door: Literal["left", "middle", "right"]


async def two_turns(task: str) -> str:
    return str(await quiet_worker.run(user_msg=task))


async def streaming(task: str) -> str:
    running = worker.run(user_msg=task)
    pieces = [
        event.delta
        async for event in running.stream_events()
        if isinstance(event, AgentStream) and event.delta
    ]
    await running
    assert len(pieces) > 1
    return "".join(pieces)


async def parallel_calls(task: str) -> list[str]:
    result = await worker.run(user_msg=task)
    return [call.tool_kwargs["door"] for call in result.tool_calls]


async def structured_output(task: str) -> dict[str, Any]:
    found = await llm.as_structured_llm(Choice).acomplete(task)
    return found.raw.model_dump()


async def structured_with_tools(task: str) -> dict[str, Any]:
    """Request the format at the end, as a tool that must be called."""
    chooser = FunctionAgent(
        name="worker", tools=[contract.open_door], llm=llm, output_cls=Choice, streaming=False
    )
    return (await chooser.run(user_msg=task)).structured_response


bad_arguments = two_turns
server_error = two_turns


async def rate_limited(task: str) -> str:
    return str(await worker.run(user_msg=task))
