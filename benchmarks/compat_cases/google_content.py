"""Cases of Google's SDK with ``generateContent``."""

from __future__ import annotations

import json
from typing import Any

try:
    import httpx
except ModuleNotFoundError:  # what later versions use
    import httpx2 as httpx  # type: ignore[no-redef]
from google import genai
from google.genai import types

from compat_cases.contract import CASES, NOWHERE, SCHEMA, open_door

NAMELESS = frozenset(CASES)
TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="open_door",
            parameters=types.Schema(
                type=types.Type.OBJECT, properties={"door": types.Schema(type=types.Type.STRING)}
            ),
        )
    ]
)
ASKED: dict[str, Any] = {"max_output_tokens": 200, "tools": [TOOL]}
RETRIED = types.HttpRetryOptions(attempts=3, initial_delay=0.01)


def models() -> Any:
    """Return the models of a client; it prefers aiohttp, which is not rerouted."""
    options = types.HttpOptions(
        base_url=NOWHERE.removesuffix("/v1"),
        httpx_async_client=httpx.AsyncClient(),
        retry_options=RETRIED,
    )
    return genai.Client(api_key="real", http_options=options).aio.models


def results(content: Any) -> list[Any]:
    """Return the tool's result for each call."""
    found = []
    for part in content.parts:
        if part.function_call:
            try:
                result = {"output": open_door(**part.function_call.args)}
            except (TypeError, ValueError) as error:
                result = {"error": str(error)}
            found.append(types.Part.from_function_response(name="open_door", response=result))
    return found


async def converse(task: str, **options: Any) -> list[Any]:
    """Return all answers to an agent with the tool."""
    contents: list[Any] = [types.UserContent(task)]
    answers = []
    asking = models()
    while True:
        answers.append(
            await asking.generate_content(
                model="gemini", contents=contents, config={**ASKED, **options}
            )
        )
        content = answers[-1].candidates[0].content
        following = results(content)
        if not following:
            return answers
        contents += [content, types.UserContent(following)]


async def two_turns(task: str) -> str:
    return (await converse(task))[-1].text


async def streaming(task: str) -> str:
    contents: list[Any] = [types.UserContent(task)]
    asking = models()
    while True:
        stream = await asking.generate_content_stream(
            model="gemini", contents=contents, config=ASKED
        )
        pieces = [chunk async for chunk in stream]
        spoken = [chunk.candidates[0].content for chunk in pieces]
        following = [part for content in spoken for part in results(content)]
        if not following:
            assert len(pieces) > 1
            return "".join(chunk.text or "" for chunk in pieces)
        contents += [*spoken, types.UserContent(following)]


async def parallel_calls(task: str) -> list[str]:
    first = (await converse(task))[0]
    return [call.args["door"] for call in first.function_calls]


async def structured_output(task: str) -> dict[str, Any]:
    answer = await models().generate_content(
        model="gemini",
        contents=task,
        config={
            "max_output_tokens": 200,
            "response_mime_type": "application/json",
            "response_json_schema": SCHEMA,
        },
    )
    return json.loads(answer.text)


async def structured_with_tools(task: str) -> dict[str, Any]:
    form = {"response_mime_type": "application/json", "response_json_schema": SCHEMA}
    return json.loads((await converse(task, **form))[-1].text)


bad_arguments = two_turns
rate_limited = two_turns
server_error = two_turns
