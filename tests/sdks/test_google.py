"""Google's SDK against the server, and requests that it does not make."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import errors, types
from pydantic import BaseModel

from ajet_testing.servers import ServerFactory
from tests.support.sdks import ENDED, SPOKEN, Agent

pytestmark = pytest.mark.processes

MOVE = types.FunctionDeclaration(
    name="move",
    description="Moves.",
    parameters=types.Schema(
        type=types.Type.OBJECT,
        properties={
            "direction": types.Schema(type=types.Type.STRING),
            "steps": types.Schema(type=types.Type.INTEGER, nullable=True),
        },
    ),
)
TOOLS = [types.Tool(function_declarations=[MOVE])]
ARGUMENTS = {"direction": "up", "steps": 2}
ASKED = types.UserContent("Where are you?")
CONFIG: dict[str, Any] = {
    "tools": TOOLS,
    "system_instruction": "Be brief.",
    "max_output_tokens": 200,
    "automatic_function_calling": {"disable": True},
}
PLAIN = {"contents": [{"parts": [{"text": "Where are you?"}]}]}


def answered(*, with_ids: bool, calls: list[types.FunctionCall]) -> types.UserContent:
    """The results of two calls; without ids they are told apart by name and order."""
    return types.UserContent(
        [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id if with_ids else None, name="move", response=response
                )
            )
            for call, response in zip(
                calls, ({"output": "moved"}, {"error": "a wall"}), strict=True
            )
        ]
        + [types.Part(text="Go on.")]
    )


async def generate(agent: Agent, contents: Any, **config: Any) -> Any:
    return await agent.google.aio.models.generate_content(
        model="any", contents=contents, config={**CONFIG, **config}
    )


async def stream(agent: Agent, contents: Any, **config: Any) -> list[Any]:
    chunks = await agent.google.aio.models.generate_content_stream(
        model="any", contents=contents, config={**CONFIG, **config}
    )
    return [chunk async for chunk in chunks]


async def post(agent: Agent, path: str, body: Any, **headers: str) -> Any:
    headers = headers or {"x-goog-api-key": agent.grant["api_key"]}
    return await agent.server.http.post(path, json=body, headers=headers)


@pytest.mark.parametrize("with_ids", [True, False])
async def test_two_turns_with_tools_extend_each_other(agent: Agent, with_ids: bool) -> None:
    first = await generate(agent, [ASKED])
    (candidate,) = first.candidates
    text, *calls = candidate.content.parts
    assert (text.text, candidate.finish_reason) == (SPOKEN, types.FinishReason.STOP)
    calls = [part.function_call for part in calls]
    assert [(call.name, call.args) for call in calls] == [("move", ARGUMENTS)] * 2
    assert calls[0].id != calls[1].id
    said = [ASKED, candidate.content, answered(with_ids=with_ids, calls=calls)]
    second = await generate(agent, said)
    one, two = await agent.calls()
    assert [one.call_id, two.call_id] == [first.response_id, second.response_id]
    usage = second.usage_metadata
    assert usage.prompt_token_count == two.prompt_length
    assert usage.candidates_token_count == len(two.sampled_ids)
    assert usage.total_token_count == two.length
    # All tokens of the first call, exactly.
    assert two.prompt_ids[: one.length] == one.token_ids
    messages = [message.text for message in two.conversation()]
    assert [message.role for message in messages] == (
        ["system", "user", "assistant", "tool", "tool", "user"]
    )
    assert [message.content for message in messages][-3:] == [
        "moved",
        '{"error": "a wall"}',
        "Go on.",
    ]
    assert [message.tool_call_id for message in messages][3:5] == [call.id for call in calls]
    (tool,) = json.loads(two.tools)
    assert tool["function"]["parameters"]["properties"] == {
        "direction": {"type": "string"},
        "steps": {"type": ["integer", "null"]},
    }


@pytest.mark.parametrize("prefix", [None, "move__"])
async def test_calls_whose_ids_were_left_out_or_changed_are_recognised(
    servers: ServerFactory, agent: Agent, prefix: str | None
) -> None:
    """Twice the same calls, of which only the order differs."""
    said: list[Any] = [ASKED]
    for _ in range(3):
        content = (await generate(agent, said)).candidates[0].content
        for part in content.parts:
            if part.function_call:
                part.function_call.id = prefix and prefix + part.function_call.id
        calls = [part.function_call for part in content.parts if part.function_call]
        said += [content, answered(with_ids=prefix is not None, calls=calls)]
    one, two, three = await agent.calls()
    assert two.prompt_ids[: one.length] == one.token_ids
    assert three.prompt_ids[: two.length] == two.token_ids
    assert three.base is not None
    # Of other calls, any ids will do.
    body = {
        "contents": [
            {"parts": [{"text": "Where are you?"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "fly"}}] * 2},
            {"parts": [{"functionResponse": {"name": "fly", "response": {"a": 1}}}] * 2},
        ]
    }
    assert (await post(agent, "/v1beta/models/m:generateContent", body)).status_code == 200
    said = [message.text for message in (await agent.calls())[-1].conversation()]
    assert [message.tool_call_id for message in said[2:]] == ["call_0", "call_1"]
    assert [message.content for message in said[2:]] == ['{"a": 1}'] * 2


async def test_a_stream_is_the_same_content_and_goes_on_exactly(agent: Agent) -> None:
    config = {"response_logprobs": True, "logprobs": 2}
    whole = (await generate(agent, [ASKED], **config)).candidates[0]
    chunks = await stream(agent, [ASKED], **config)
    texts = [chunk.text for chunk in chunks if chunk.text]
    # Word by word, as the engine made it.
    assert len(texts) > 3
    assert "".join(texts) == whole.content.parts[0].text == SPOKEN
    calls = [call for chunk in chunks for call in chunk.function_calls or ()]
    assert [(call.name, call.args) for call in calls] == [("move", ARGUMENTS)] * 2
    ends = [chunk.candidates[0].finish_reason for chunk in chunks]
    assert ends == [None] * (len(ends) - 1) + [whole.finish_reason]
    one, two = await agent.calls()
    listed = [chunk.candidates[0].logprobs_result for chunk in chunks]
    chosen = [token for one in listed if one for token in one.chosen_candidates or ()]
    assert [token.token_id for token in chosen] == two.sampled_ids
    assert [token.log_probability for token in chosen] == pytest.approx(two.logprobs)
    assert chosen == whole.logprobs_result.chosen_candidates
    assert len(whole.logprobs_result.top_candidates[0].candidates) == 2
    assert chunks[-1].usage_metadata.candidates_token_count == len(two.sampled_ids)
    assert whole.avg_logprobs == pytest.approx(sum(one.logprobs) / len(one.logprobs))
    # A chat of the SDK keeps each chunk as a content of its own.
    said = [ASKED, *(chunk.candidates[0].content for chunk in chunks)]
    await generate(agent, [*said, answered(with_ids=False, calls=calls)])
    three = (await agent.calls())[-1]
    assert three.prompt_ids[: two.length] == two.token_ids
    assert [message.text.role for message in three.conversation()][:3] == [
        "system",
        "user",
        "assistant",
    ]


async def test_a_chat_of_the_sdk_extends_its_earlier_turns(model_says) -> None:
    agent = await model_says(f"{SPOKEN}{ENDED}")
    chat = agent.google.aio.chats.create(model="any")
    async for _ in await chat.send_message_stream("Where are you?"):
        pass
    answer = await chat.send_message("And now?")
    assert answer.text == SPOKEN
    one, two = await agent.calls()
    assert two.prompt_ids[: one.length] == one.token_ids


async def test_without_alt_a_stream_is_an_array(agent: Agent) -> None:
    body = {**PLAIN, "generation_config": {"max_output_tokens": 200, "candidate_count": 2}}
    streamed = await post(agent, "/v1beta/models/m:streamGenerateContent", body)
    assert streamed.headers["content-type"].startswith("application/json")
    chunks = streamed.json()
    whole = (await post(agent, "/v1/models/a/b:generateContent", body)).json()
    assert [candidate["index"] for candidate in whole["candidates"]] == [0, 1]
    for candidate in whole["candidates"]:
        same = [
            part
            for chunk in chunks
            for one in chunk["candidates"]
            if one["index"] == candidate["index"]
            for part in one["content"]["parts"]
        ]
        text = "".join(part["text"] for part in same)
        assert text == "".join(part["text"] for part in candidate["content"]["parts"])
    assert chunks[-1]["usageMetadata"] == whole["usageMetadata"]
    assert len(await agent.calls()) == 4


async def test_thoughts_are_parts_of_their_own_if_they_are_wanted(model_says) -> None:
    agent = await model_says(f"<think>\nWhere is up?\n</think>\n\nUp.{ENDED}")
    wanted = {"thinking_config": {"include_thoughts": True, "thinking_budget": 100}}
    whole = await generate(agent, [ASKED], **wanted)
    thought, text = whole.candidates[0].content.parts
    assert (thought.thought, thought.text.strip()) == (True, "Where is up?")
    assert (text.thought, text.text) == (None, "Up.")
    assert whole.usage_metadata.thoughts_token_count > 0
    assert "x-ajet-ignored" in whole.sdk_http_response.headers
    chunks = await stream(agent, [ASKED], **wanted)
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    assert "".join(part.text for part in parts if part.thought) == thought.text
    assert "".join(part.text for part in parts if not part.thought) == "Up."
    assert chunks[-1].usage_metadata == whole.usage_metadata
    (only,) = (await generate(agent, [ASKED])).candidates[0].content.parts
    assert only.text == "Up."
    plain = await stream(agent, [ASKED])
    assert not any(part.thought for one in plain for part in one.candidates[0].content.parts)
    # What is recorded is what was said, if it is sent back.
    await generate(agent, [ASKED, whole.candidates[0].content, ASKED])
    said = [message.text for message in (await agent.calls())[-1].conversation()]
    assert [message.reasoning.strip() for message in said] == ["", "", "Where is up?", ""]


async def test_ends_are_told_apart(model_says) -> None:
    agent = await model_says(f"One two three.{ENDED}")
    short = await generate(agent, [ASKED], max_output_tokens=2)
    assert short.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert short.usage_metadata.candidates_token_count == 2
    stopped = await generate(agent, [ASKED], stop_sequences=["thr", "three"])
    assert stopped.candidates[0].finish_reason == types.FinishReason.STOP
    assert stopped.text == "One two"


class Choice(BaseModel):
    """What the model shall answer."""

    door: str
    steps: int | None = None


@pytest.mark.parametrize(
    "form",
    [
        {"response_schema": Choice, "response_mime_type": "application/json"},
        {"response_json_schema": Choice.model_json_schema()},
        {"response_mime_type": "application/json"},
    ],
)
async def test_structured_output_constrains_the_answer(model_says, form: dict) -> None:
    agent = await model_says(f'{{"door": "left"}}{ENDED}', "obedient", checks_grammar=True)
    answer = await generate(agent, [ASKED], tools=None, **form)
    assert json.loads(answer.text) == {"door": "left"}
    if "response_schema" in form:
        assert answer.parsed == Choice(door="left")
    (call,) = await agent.calls()
    assert call.metadata["shaped_by"] == "grammar"


@pytest.mark.parametrize(
    ("mode", "calls"), [("ANY", 2), ("AUTO", 2), ("VALIDATED", 2), ("NONE", 0)]
)
async def test_modes_of_function_calling(model_says, mode: str, calls: int) -> None:
    call = '<tool_call>\n{"name": "move", "arguments": {"direction": "up"}}\n</tool_call>'
    agent = await model_says(f"{call}\n{call}{ENDED}", "obedient", checks_grammar=True)
    calling = {"mode": mode, "allowed_function_names": ["move"] if mode == "ANY" else None}
    answer = await generate(agent, [ASKED], tool_config={"function_calling_config": calling})
    assert len(answer.function_calls or ()) == calls
    (recorded,) = await agent.calls()
    assert ("shaped_by" in recorded.metadata) == (mode == "ANY")
    assert bool(recorded.tools) == (mode != "NONE")
    named = answer.sdk_http_response.headers.get("x-ajet-ignored")
    path = "toolConfig.functionCallingConfig.mode"
    assert named == (path if mode == "VALIDATED" else None)


async def test_tokens_are_counted_and_the_model_is_described(agent: Agent) -> None:
    google = agent.google.aio.models
    counted = await google.count_tokens(model="any", contents=[ASKED])
    answer = await generate(agent, [ASKED], tools=None, system_instruction=None)
    assert counted.total_tokens == answer.usage_metadata.prompt_token_count
    inner = {"generateContentRequest": {"model": "models/m", **PLAIN, "system_instruction": "Hi."}}
    more = await post(agent, "/v1beta/models/m:countTokens", inner)
    assert more.json()["totalTokens"] > (counted.total_tokens or 0)
    assert len(await agent.calls()) == 1
    (described,) = [model async for model in await google.list()]
    assert (await google.get(model=described.name)).name == described.name
    assert described.input_token_limit == 4096
    with pytest.raises(errors.ClientError, match="does not exist"):
        await google.get(model="another")
    for version in ("v1", "v1beta"):
        wrong = await agent.server.http.get(f"/{version}/models/m:generateContent")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"topK": "many"}, "generationConfig.topK"),
        ({"frequencyPenalty": 1}, "generationConfig.frequencyPenalty"),
        ({"responseLogprobs": True, "logprobs": 99}, "generationConfig.logprobs"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_the_name_of_its_field(
    model_says, config: dict[str, Any], field: str
) -> None:
    agent = await model_says(f"Hi.{ENDED}")
    body = {**PLAIN, "generationConfig": config}
    for method in ("generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent"):
        answer = await post(agent, f"/v1beta/models/m:{method}", body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
        assert error["message"].startswith(field)
        (violation,) = error["details"][1]["fieldViolations"]
        assert violation["field"] == field
    assert await agent.calls() == []


async def test_a_prompt_that_is_too_long_has_googles_words(model_says) -> None:
    agent = await model_says(f"Hi.{ENDED}", max_context=32)
    for ask in (generate, stream):
        with pytest.raises(errors.ClientError, match="exceeds the maximum number of tokens"):
            await ask(agent, ["long " * 50])


async def test_keys_in_each_place_and_keys_that_open_nothing(agent: Agent) -> None:
    path, key = "/v1beta/models/m:generateContent", agent.grant["api_key"]
    for version in ("v1beta", "v1"):
        in_path = f"/e/{key}/{version}/models/m:generateContent"
        assert (await post(agent, in_path, PLAIN, accept="*/*")).status_code == 200
        in_query = f"/{version}/models/m:generateContent?key={key}"
        assert (await post(agent, in_query, PLAIN, accept="*/*")).status_code == 200
    bearer = await post(agent, path, PLAIN, authorization=f"Bearer {key}")
    assert bearer.status_code == 200
    for url in (path, f"{path}?key=nonsense", f"/v1/chat/completions?key={key}"):
        refused = await post(agent, url, PLAIN, accept="*/*")
        assert refused.status_code == 401
    agent.grant["api_key"], kept = "ajet-ep-nobody", key
    with pytest.raises(errors.ClientError) as unknown:
        await generate(agent, [ASKED])
    assert (unknown.value.code, unknown.value.status) == (401, "UNAUTHENTICATED")
    agent.grant["api_key"] = kept
    await agent.server.end(agent.grant, 1.0)
    with pytest.raises(errors.ClientError) as closed:
        await stream(agent, [ASKED])
    assert (closed.value.code, closed.value.status) == (410, "FAILED_PRECONDITION")


async def test_what_has_no_effect_is_named(agent: Agent) -> None:
    body = {
        **PLAIN,
        "safetySettings": [{"category": "HARM", "threshold": "OFF"}],
        "labels": {"a": "b"},
        "tools": [
            {"googleSearch": {}},
            {"function_declarations": [{"name": "move", "response": {"type": "STRING"}}]},
        ],
        "generationConfig": {"mediaResolution": "LOW", "thinkingConfig": {"thinkingBudget": 5}},
    }
    answer = await post(agent, "/v1beta/models/m:generateContent", body)
    assert answer.headers["x-ajet-ignored"].split(",") == [
        "labels",
        "safetySettings",
        "tools[0].googleSearch",
        "functionDeclarations.response",
        "generationConfig.mediaResolution",
        "generationConfig.thinkingConfig.thinkingBudget",
    ]
    wrong = await post(agent, "/v1beta/models/m:streamGenerateContent?alt=proto", body)
    assert (wrong.status_code, wrong.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert "alt" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/v1/chat/completions", "code"),
        ("/v1/v1/responses", "code"),
        ("/v1/v1/messages", "type"),
        ("/v1/v1beta/models/m:generateContent", "status"),
        ("/v1/v1/models/m:generateContent", "status"),
    ],
)
async def test_a_base_url_with_the_version_twice_is_explained(
    agent: Agent, path: str, form: str
) -> None:
    for prefix in ("", f"/e/{agent.grant['api_key']}"):
        answer = await post(agent, prefix + path, PLAIN)
        assert answer.status_code == 404
        assert "base_url without /v1" in answer.json()["error"]["message"]
        assert form in answer.json()["error"]
